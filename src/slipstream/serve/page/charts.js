// Figures of an answer: a list of numbers and two small charts.

const SVG = "http://www.w3.org/2000/svg";

export class Figures {
  constructor() {
    this.began = performance.now();
    this.first = null;
    this.tokens = 0;
    this.cycles = [];
    this.usage = null;
  }

  add(count) {
    if (!count) return;
    this.first ??= performance.now();
    this.tokens += count;
    this.cycles.push(count);
  }

  get speed() {
    const seconds = (performance.now() - (this.first ?? this.began)) / 1000;
    return this.tokens > 1 && seconds > 0 ? (this.tokens - this.cycles[0]) / seconds : 0;
  }

  get tau() {
    return this.cycles.length ? this.tokens / this.cycles.length : 0;
  }
}

export function list(place, pairs) {
  place.replaceChildren(
    ...pairs.flatMap(([name, value]) => {
      const [term, number] = [document.createElement("dt"), document.createElement("dd")];
      [term.textContent, number.textContent] = [name, value];
      return [term, number];
    }),
  );
}

export function show(figures) {
  const spent = figures.usage?.speculation;
  list(document.getElementById("figures"), [
    ["tokens", String(figures.tokens)],
    ["tokens per second", figures.speed.toFixed(1)],
    ["first token", figures.first ? `${((figures.first - figures.began) / 1000).toFixed(2)} s` : "–"],
    ["tau", figures.tau.toFixed(2)],
    ...(spent ? [["drafted", String(spent.drafted)], ["accepted", String(spent.accepted)], ["rule", spent.rule], ["lossless", String(spent.lossless)]] : []),
  ]);
  bars(document.getElementById("cycles-chart"), figures.cycles.slice(-80), Math.max(4, ...figures.cycles));
  const acceptance = spent?.acceptance ?? [];
  bars(document.getElementById("acceptance-chart"), acceptance, 1, (value) => `${Math.round(100 * value)}`);
}

const queue = [];

// Rows that run and requests that wait, one bar per look at the server.
export function showQueue(running, waiting) {
  queue.push([running, running + waiting]);
  queue.splice(0, queue.length - 60);
  const svg = document.getElementById("queue-chart");
  const top = Math.max(4, ...queue.map(([, all]) => all));
  bars(svg, queue.map(([, all]) => all), top);
  for (const bar of svg.querySelectorAll("rect")) bar.setAttribute("class", "waiting");
  const [width, height, step] = [300, 70, 300 / Math.max(8, queue.length)];
  queue.forEach(([rows], i) => {
    const bar = document.createElementNS(SVG, "rect");
    const tall = (rows / top) * (height - 14);
    for (const [name, number] of Object.entries({ x: i * step + 1, y: height - tall, width: Math.max(1, step - 2), height: tall })) bar.setAttribute(name, number);
    svg.append(bar);
  });
  svg.setAttribute("aria-label", `${running} rows run, ${waiting} requests wait; the most was ${top}`);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
}

function bars(svg, values, top, label) {
  const [width, height] = [300, 70];
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("preserveAspectRatio", "none");
  const step = width / Math.max(8, values.length);
  svg.replaceChildren(
    ...values.flatMap((value, i) => {
      const bar = document.createElementNS(SVG, "rect");
      const tall = (value / top) * (height - 14);
      for (const [name, number] of Object.entries({ x: i * step + 1, y: height - tall, width: Math.max(1, step - 2), height: tall })) bar.setAttribute(name, number);
      if (!label) return [bar];
      const text = document.createElementNS(SVG, "text");
      for (const [name, number] of Object.entries({ x: i * step + 3, y: height - tall - 3 })) text.setAttribute(name, number);
      text.textContent = label(value);
      return [bar, text];
    }),
  );
}
