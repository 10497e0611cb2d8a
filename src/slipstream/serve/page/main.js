// Starts the page: views, dials, and what the server says of itself every two seconds.

import { get } from "./api.js";
import { list } from "./charts.js";
import { startChat } from "./chat.js";
import { startRace } from "./race.js";
import { offer, watchDials } from "./settings.js";
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

async function refresh() {
  try {
    const server = await get("/v1/slipstream");
    state(server.ready ? "ready" : "", server.ready ? "ready" : "loading the model");
    document.getElementById("model").textContent = server.label ?? server.model;
    offer("drafter", server.drafters);
    offer("rule", server.rules);
    list(document.getElementById("server"), [
      ["drafter", server.drafter],
      ["running", String(server.stats.running ?? 0)],
      ["waiting", String(server.stats.waiting ?? 0)],
      ["tokens", String(server.stats.tokens ?? 0)],
      ["tau", (server.stats.tau ?? 0).toFixed(2)],
    ]);
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
