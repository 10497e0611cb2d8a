// Starts the page: views, dials, and what the server says of itself every two seconds.

import { get } from "./api.js";
import { startChat } from "./chat.js";
import { showServer } from "./live.js";
import { startRace } from "./race.js";
import { allowDetails, offer, watchDials } from "./settings.js";
import { watchTokens } from "./tokens.js";

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
    if (server.logprobs !== undefined) allowDetails(server.logprobs);
    showServer(server);
  } catch (error) {
    state("down", error instanceof TypeError ? "the server does not answer" : error.message);
  }
}

startChat();
startRace();
watchDials();
watchTokens();
for (const name of ["chat", "race"]) document.getElementById(`show-${name}`).addEventListener("click", () => view(name));
await refresh();
setInterval(refresh, 2000);
