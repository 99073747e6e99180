// Line charts over time, as SVG: the values of the last minutes, and a readout under the pointer.
"use strict";

const WINDOW_S = 120; // shown from the start, so that two points do not look like a trend
const HEIGHT = 130;
const EDGE = { left: 44, right: 14, top: 10, bottom: 22 };
const STEPS_S = [15, 30, 60, 120];

function short(value, unit) {
  if (unit === "ms" && value) return value.toFixed(value < 10 ? 1 : 0);
  const names = ["", "k", "M", "G", "T"];
  let at = 0;
  while (value >= 1000 && at < names.length - 1) { value /= 1000; at += 1; }
  return (value < 10 && at ? value.toFixed(1) : Math.round(value)) + names[at];
}

function clock(time_s, seconds) {
  return new Date(time_s * 1000).toTimeString().slice(0, seconds ? 8 : 5);
}

function niceStep(range, most) {
  const size = 10 ** Math.floor(Math.log10(range / most));
  return [1, 2, 5, 10].map((n) => n * size).find((step) => range / step <= most);
}

class Chart {
  // `data` is [times, values, …]; values may be null. `names` are those of the lines.
  constructor(place, data, names) {
    Object.assign(this, { place, data, names, unit: place.dataset.unit, pointer: null });
    this.svg = this.shape("svg", { role: "img" });
    place.replaceChildren(this.svg);
    this.svg.addEventListener("pointermove", (event) => { this.pointer = event.offsetX; this.draw(); });
    this.svg.addEventListener("pointerleave", () => { this.pointer = null; this.draw(); });
    this.draw();
  }

  shape(name, attributes, text = "") {
    const found = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, value);
    found.textContent = text;
    return found;
  }

  draw() {
    const [times, ...lines] = this.data;
    const width = Math.max(this.place.clientWidth, 120);
    const last = times.at(-1) ?? Date.now() / 1000;
    const first = Math.min(times[0] ?? last, last - WINDOW_S);
    const high = Math.max(0, ...lines.flat().filter((value) => value !== null));
    const top = Math.max(high * 1.15, this.unit === "ms" ? 5 : 10);
    const right = width - EDGE.right, bottom = HEIGHT - EDGE.bottom;
    const x = (time) => EDGE.left + (right - EDGE.left) * (time - first) / (last - first);
    const y = (value) => bottom - (bottom - EDGE.top) * value / top;
    const shapes = [...this.grid(first, last, top, x, y, right, bottom)];
    lines.forEach((values, at) => shapes.push(...this.line(times, values, at, x, y, bottom, lines.length === 1)));
    if (this.pointer !== null && times.length) shapes.push(...this.readout(x, y, right, bottom));
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.svg.setAttribute("aria-label", this.words(times.length - 1));
    this.svg.replaceChildren(...shapes);
  }

  *grid(first, last, top, x, y, right, bottom) {
    const step = niceStep(top, 5);
    for (let value = 0; value <= top; value += step) {
      yield this.shape("path", { class: "grid", d: `M${EDGE.left} ${y(value)}H${right}` });
      yield this.shape("text", { x: EDGE.left - 6, y: y(value) + 4, "text-anchor": "end" }, short(value, this.unit));
    }
    const step_s = STEPS_S.find((each) => (last - first) / each <= (right - EDGE.left) / 70) ?? 300;
    for (let time = Math.ceil(first / step_s) * step_s; time <= last; time += step_s) {
      yield this.shape("path", { class: "grid", d: `M${x(time)} ${EDGE.top}V${bottom}` });
      if (x(time) < right - 12) yield this.shape("text", { x: x(time), y: bottom + 15, "text-anchor": "middle" }, clock(time, time % 60));
    }
  }

  *line(times, values, at, x, y, bottom, alone) {
    const points = times.map((time, n) => [time, values[n]]).filter(([, value]) => value !== null);
    if (!points.length) return;
    const path = "M" + points.map(([time, value]) => `${x(time).toFixed(1)} ${y(value).toFixed(1)}`).join("L");
    if (alone) yield this.shape("path", { class: "area", d: `${path}V${bottom}H${x(points[0][0]).toFixed(1)}Z` });
    yield this.shape("path", { class: alone ? "line" : `line s${at + 1}`, d: path });
  }

  *readout(x, y, right, bottom) {
    const [times, ...lines] = this.data;
    const distance = (n) => Math.abs(x(times[n]) - this.pointer);
    const at = times.reduce((best, _, n) => (distance(n) < distance(best) ? n : best), 0);
    yield this.shape("path", { class: "pointer", d: `M${x(times[at])} ${EDGE.top}V${bottom}` });
    for (const values of lines) {
      if (values[at] !== null) yield this.shape("circle", { class: "pointer", cx: x(times[at]), cy: y(values[at]), r: 3 });
    }
    const left = x(times[at]) < (EDGE.left + right) / 2;
    yield this.shape("text", { class: "readout", x: left ? right : EDGE.left + 4, y: EDGE.top + 4, "text-anchor": left ? "end" : "start" }, this.words(at));
  }

  words(at) {
    const [times, ...lines] = this.data;
    if (at < 0) return "no values yet";
    const shown = lines.map((values, n) => [this.names[n], values[at]]).filter(([, value]) => value !== null);
    return [clock(times[at], true), ...shown.map(([name, value]) => `${name} ${short(value, this.unit)}`.trim())].join("  ");
  }
}
