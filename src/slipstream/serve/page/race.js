// The race: one prompt and seed, two live requests, with speculation and without.

import { ask } from "./api.js";
import { Figures, show } from "./charts.js";
import { request } from "./settings.js";
import { append } from "./tokens.js";

const verdict = document.getElementById("race-verdict");
const stop = document.getElementById("race-stop");
let running = null;

async function lane(name, body, signal, seen) {
  const [place, line, done] = ["", "-figures", "-progress"].map((part) => document.getElementById(`race-${name}${part}`));
  place.replaceChildren();
  [done.max, done.value] = [body.max_tokens, 0];
  const figures = new Figures();
  for await (const { choice, usage } of ask(body, signal)) {
    if (choice) {
      seen[name] += choice.delta?.content ?? "";
      figures.add(append(place, choice));
    }
    figures.usage = usage ?? figures.usage;
    line.textContent = `${figures.tokens} tokens, ${figures.speed.toFixed(1)} per second, tau ${figures.tau.toFixed(2)}`;
    done.value = figures.tokens;
    compare(seen);
    if (name === "on") show(figures);
  }
  done.value = done.max; // a text may end before its last token
  return figures;
}

function say(kind, text) {
  [verdict.className, verdict.textContent] = [kind, text];
}

function compare(seen) {
  const length = Math.min(seen.on.length, seen.off.length);
  const equal = seen.on.slice(0, length) === seen.off.slice(0, length);
  say(equal ? "equal" : "different", equal ? `The texts are equal so far: ${length} characters.` : "The texts differ.");
}

async function race(text) {
  running = new AbortController();
  stop.disabled = false;
  const [seen, messages] = [{ on: "", off: "" }, [{ role: "user", content: text }]];
  try {
    const own = { logprobs: undefined, top_logprobs: undefined }; // they would slow down both
    const bodies = { on: request(messages, own), off: request(messages, { ...own, speculation: { off: true } }) };
    const [on, off] = await Promise.all(Object.entries(bodies).map(([name, body]) => lane(name, body, running.signal, seen)));
    const same = seen.on === seen.off;
    const passes = `Target passes: ${on.cycles.length} with speculation, ${off.cycles.length} without.`;
    const times = `Seconds: ${on.seconds.toFixed(1)} and ${off.seconds.toFixed(1)}, side by side on one machine.`;
    say(same ? "equal" : "different", `${same ? "The texts are equal." : "The texts differ."} ${passes} ${times}`);
  } catch (error) {
    say(error.name === "AbortError" ? "" : "different", error.name === "AbortError" ? "Stopped." : error.message);
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
