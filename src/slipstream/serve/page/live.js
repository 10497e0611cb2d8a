// What the server did in the last two minutes: tokens per second, tau, rows and queue, power.

import { area, list } from "./charts.js";

const LOOKS = 60; // one every two seconds
const looks = [];
let last = null;

function since({ stats, joules }) {
  const now = { time: performance.now() / 1000, tokens: stats.tokens ?? 0, cycles: stats.row_cycles ?? 0, joules };
  const [before, quiet] = [last ?? now, last === null || now.tokens < last.tokens]; // fewer: it was started again
  last = now;
  const [seconds, tokens, cycles] = [now.time - before.time, now.tokens - before.tokens, now.cycles - before.cycles];
  const spent = typeof joules === "number" ? joules - before.joules : null;
  return {
    speed: quiet ? 0 : tokens / seconds,
    tau: quiet || !cycles ? 0 : tokens / cycles,
    running: stats.running ?? 0,
    waiting: stats.waiting ?? 0,
    power: spent === null || quiet ? null : spent / seconds,
    energy: spent === null || quiet || !tokens ? null : spent / tokens,
  };
}

function chart(id, values, shown, least, under) {
  const top = Math.max(least, ...values);
  document.getElementById(`${id}-now`).textContent = shown;
  area(document.getElementById(`${id}-chart`), values, top, LOOKS, under);
}

export function showServer(server) {
  const now = since(server);
  looks.push(now);
  looks.splice(0, looks.length - LOOKS);
  const { stats } = server;
  list(document.getElementById("server"), [
    ["drafter", server.drafter],
    ["tokens", String(stats.tokens ?? 0)],
    ["tau since the start", (stats.tau ?? 0).toFixed(2)],
    ["cache in use", `${Math.round(100 * (stats.cache_use ?? 0))} %`],
    ...(now.energy === null ? [] : [["energy per token", `${now.energy.toFixed(2)} J`]]),
  ]);
  const all = (name) => looks.map((look) => look[name]);
  chart("speed", all("speed"), now.speed.toFixed(1), 1);
  chart("tau", all("tau"), now.tau ? now.tau.toFixed(2) : "–", 2);
  const busy = looks.map((look) => look.running + look.waiting);
  chart("queue", busy, `${now.running} + ${now.waiting}`, 2, all("running"));
  document.getElementById("power-figure").hidden = now.power === null;
  if (now.power !== null) chart("power", all("power").map((watts) => watts ?? 0), `${now.power.toFixed(0)} W`, 1);
}
