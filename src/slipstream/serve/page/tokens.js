// Tokens on the page: one span each, coloured by where it came from; on hover or focus its probability and rank in the draft.

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
    span.tabIndex = -1; // reached with the arrow keys
    span.setAttribute("aria-describedby", "tip");
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

function showTip(token) {
  const text = token.dataset?.tip;
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  if (token.dataset.cycle) showCycle(Number(token.dataset.cycle));
  const box = token.getBoundingClientRect();
  tip.style.left = `${Math.max(8, Math.min(box.left, window.innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${box.bottom + 6 + tip.offsetHeight > window.innerHeight ? box.top - tip.offsetHeight - 6 : box.bottom + 6}px`;
}

// Left and right walk through the tokens of the answer that has the focus.
function walk(event) {
  const steps = { ArrowRight: "nextElementSibling", ArrowLeft: "previousElementSibling" };
  const answer = event.target.closest?.("li.assistant");
  if (!answer || !(event.key in steps)) return;
  event.preventDefault();
  const next = event.target === answer ? answer.firstElementChild : event.target[steps[event.key]];
  next?.focus();
}

export function watchTokens() {
  document.addEventListener("mouseover", (event) => showTip(event.target));
  document.addEventListener("focusin", (event) => showTip(event.target));
  document.addEventListener("keydown", walk);
}
