// The race: one prompt and seed, two live requests, with speculation and without.

import { ask } from "./api.js";
import { Figures, show } from "./charts.js";
import { request } from "./settings.js";
import { append } from "./tokens.js";

const verdict = document.getElementById("race-verdict");
const stop = document.getElementById("race-stop");
let running = null;

async function lane(name, body, signal, seen) {
  const [place, line] = [document.getElementById(`race-${name}`), document.getElementById(`race-${name}-figures`)];
  place.replaceChildren();
  const figures = new Figures();
  for await (const { choice, usage } of ask(body, signal)) {
    if (choice) {
      seen[name] += choice.delta?.content ?? "";
      figures.add(append(place, choice));
    }
    figures.usage = usage ?? figures.usage;
    line.textContent = `${figures.tokens} tokens, ${figures.speed.toFixed(1)} per second, tau ${figures.tau.toFixed(2)}`;
    compare(seen);
    if (name === "on") show(figures);
  }
  return figures;
}

function compare(seen) {
  const length = Math.min(seen.on.length, seen.off.length);
  const equal = seen.on.slice(0, length) === seen.off.slice(0, length);
  verdict.textContent = equal ? `The texts are equal so far: ${length} characters.` : "The texts differ.";
  return equal;
}

async function race(text) {
  running = new AbortController();
  stop.disabled = false;
  const [seen, messages] = [{ on: "", off: "" }, [{ role: "user", content: text }]];
  try {
    const own = { logprobs: undefined, top_logprobs: undefined }; // they would slow down both
    const bodies = { on: request(messages, own), off: request(messages, { ...own, speculation: { off: true } }) };
    const [on, off] = await Promise.all(Object.entries(bodies).map(([name, body]) => lane(name, body, running.signal, seen)));
    const same = seen.on === seen.off ? "The texts are equal." : "The texts differ.";
    verdict.textContent = `${same} Target passes: ${on.cycles.length} with speculation, ${off.cycles.length} without.`;
  } catch (error) {
    verdict.textContent = error.name === "AbortError" ? "Stopped." : error.message;
  } finally {
    running = null;
    stop.disabled = true;
  }
}

export function startRace() {
  document.getElementById("race-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!running) race(document.getElementById("race-prompt").value.trim() || "Hello");
  });
  stop.addEventListener("click", () => running?.abort());
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") running?.abort();
  });
}
