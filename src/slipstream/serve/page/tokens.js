// Tokens on the page: one span each, coloured by where it came from; on hover its probability and rank in the draft.

import { rank, showCycle } from "./tree.js";

const tip = document.getElementById("tip");

export function append(place, choice, cycle) {
  const text = choice.delta?.content ?? "";
  const { origins = [], pieces = [], draft } = choice.slipstream ?? {};
  const logprobs = choice.logprobs?.content ?? [];
  let shown = 0;
  pieces.forEach((piece, i) => {
    const span = document.createElement("span");
    span.className = origins[i] ?? "plain";
    span.textContent = piece;
    span.dataset.tip = describe(origins[i], logprobs[i], rank(draft, i));
    if (cycle !== undefined) span.dataset.cycle = cycle;
    place.append(span);
    shown += piece.length;
  });
  if (text.length > shown) place.append(text.slice(shown));
  return pieces.length;
}

function describe(origin, entry, place) {
  const lines = [origin ?? "plain"];
  if (place) lines.push(place);
  if (entry) {
    lines[0] += `, probability ${percent(entry.logprob)}`;
    for (const other of entry.top_logprobs) lines.push(`${percent(other.logprob).padStart(6)}  ${JSON.stringify(other.token)}`);
  }
  return lines.join("\n");
}

const percent = (logprob) => `${(100 * Math.exp(logprob)).toFixed(1)} %`;

export function watchHover() {
  document.addEventListener("mouseover", (event) => {
    const text = event.target.dataset?.tip;
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    if (event.target.dataset.cycle) showCycle(Number(event.target.dataset.cycle));
    const box = event.target.getBoundingClientRect();
    tip.style.left = `${Math.min(box.left, window.innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${box.bottom + 6 + tip.offsetHeight > window.innerHeight ? box.top - tip.offsetHeight - 6 : box.bottom + 6}px`;
  });
}
