// Starts the page: views, dials, and what the server says of itself every two seconds.

import { get } from "./api.js";
import { list, showQueue } from "./charts.js";
import { startChat } from "./chat.js";
import { startRace } from "./race.js";
import { allowDetails, offer, watchDials } from "./settings.js";
import { watchHover } from "./tokens.js";

const status = document.getElementById("status");

function view(name) {
  for (const each of ["chat", "race"]) {
    document.getElementById(each).hidden = each !== name;
    document.getElementById(`show-${each}`).setAttribute("aria-pressed", String(each === name));
  }
}

function state(kind, text) {
  status.className = `state ${kind}`;
  status.textContent = text;
}

let last = null; // the energy counter at the last look

function energy({ joules, stats }) {
  if (joules === null || joules === undefined) return [];
  const now = { joules, tokens: stats.tokens, time: performance.now() };
  const seconds = last ? (now.time - last.time) / 1000 : 0;
  const tokens = last ? now.tokens - last.tokens : 0;
  const rows = [["power", seconds ? `${((now.joules - last.joules) / seconds).toFixed(0)} W` : "–"]];
  if (tokens) rows.push(["energy per token", `${((now.joules - last.joules) / tokens).toFixed(2)} J`]);
  last = now;
  return rows;
}

async function refresh() {
  try {
    const server = await get("/v1/slipstream");
    state(server.ready ? "ready" : "", server.ready ? "ready" : "loading the model");
    document.getElementById("model").textContent = server.label ?? server.model;
    offer("drafter", server.drafters);
    offer("rule", server.rules);
    if (server.logprobs !== undefined) allowDetails(server.logprobs);
    list(document.getElementById("server"), [
      ["drafter", server.drafter],
      ["running", String(server.stats.running ?? 0)],
      ["waiting", String(server.stats.waiting ?? 0)],
      ["tokens", String(server.stats.tokens ?? 0)],
      ["tau", (server.stats.tau ?? 0).toFixed(2)],
      ["cache in use", `${Math.round(100 * (server.stats.cache_use ?? 0))} %`],
      ...energy(server),
    ]);
    showQueue(server.stats.running ?? 0, server.stats.waiting ?? 0);
  } catch (error) {
    state("down", error instanceof TypeError ? "the server does not answer" : error.message);
  }
}

startChat();
startRace();
watchDials();
watchHover();
for (const name of ["chat", "race"]) document.getElementById(`show-${name}`).addEventListener("click", () => view(name));
await refresh();
setInterval(refresh, 2000);
