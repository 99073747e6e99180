// Keeps the parts of a page up to date, draws charts, and sends what forms ask for to the API.
"use strict";

const said = document.getElementById("said");
const link = document.getElementById("link");
const away = document.getElementById("away");

function say(text) {
  said.textContent = text;
  said.hidden = false;
  clearTimeout(say.timer);
  say.timer = setTimeout(() => { said.hidden = true; }, 8000);
}

// ---- parts that change

function replacePart(name, html) {
  const part = document.getElementById(name);
  if (!part) return;
  const selection = getSelection();
  if (selection && !selection.isCollapsed && part.contains(selection.anchorNode)) return;
  const focused = part.contains(document.activeElement) ? document.activeElement.id : "";
  part.innerHTML = html;
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

function listen() {
  const path = document.body.dataset.live;
  if (!path) return;
  const source = new EventSource(path + (path.includes("?") ? "" : location.search));
  source.addEventListener("open", () => { link.textContent = "live"; link.className = "link good"; });
  source.addEventListener("error", () => { link.textContent = "reconnecting"; link.className = "link problem"; });
  source.addEventListener("parts", (event) => {
    away.hidden = true;
    for (const [name, html] of Object.entries(JSON.parse(event.data))) replacePart(name, html);
  });
  source.addEventListener("failure", (event) => {
    const data = JSON.parse(event.data);
    away.textContent = data.message ?? data.error.message;
    away.hidden = false;
  });
  source.addEventListener("rates", (event) => addTo(columns, JSON.parse(event.data)));
  source.addEventListener("latencies", (event) => addTo(slow, JSON.parse(event.data)));
  source.addEventListener("reload", () => location.reload());
  addEventListener("pagehide", () => source.close());
}

// ---- charts

const KEPT = 300;
const WINDOW_S = 120; // shown from the start, so that two points do not look like a trend
const columns = [[], [], [], [], []];
const slow = [[], [], [], [], []]; // latencies
const charts = [];

function short(value, unit) {
  if (unit === "ms") return value.toFixed(value < 10 ? 1 : 0);
  const names = ["", "k", "M", "G", "T"];
  let at = 0;
  while (value >= 1000 && at < names.length - 1) { value /= 1000; at += 1; }
  return (value < 10 && at ? value.toFixed(1) : Math.round(value)) + names[at];
}

function clock(time_s) {
  return new Date(time_s * 1000).toTimeString().slice(0, time_s % 60 ? 8 : 5);
}

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function drawCharts() {
  for (const { plot } of charts.splice(0)) plot.destroy();
  for (const place of document.querySelectorAll(".chart")) {
    const unit = place.dataset.unit;
    const data = "latencies" in place.dataset ? slow : [columns[0], columns[Number(place.dataset.series)]];
    const lines = data === slow ? [1, 2, 3, 4].map((n) => ({ stroke: color(`--line-${n}`), width: 2, spanGaps: true, points: { show: false } }))
      : [{ stroke: color("--accent"), fill: color("--accent-soft"), width: 2, points: { show: false } }];
    const axis = { stroke: color("--dim"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    const plot = new uPlot({
      width: place.clientWidth,
      height: 130,
      padding: [10, 22, 0, 0],
      legend: { show: false },
      cursor: { y: false, points: { size: 6 } },
      scales: { x: { range: (u, first, last) => [Math.min(first ?? last, (last ?? 0) - WINDOW_S), last] }, y: { range: (u, low, high) => [0, Math.max(high * 1.15, unit === "ms" ? 5 : 10)] } },
      axes: [
        { ...axis, size: 24, space: 60, incrs: [15, 30, 60, 120], values: (u, times) => times.map(clock) },
        { ...axis, size: 44, space: 30, values: (u, values) => values.map((v) => short(v, unit)) },
      ],
      series: [{}, ...lines],
    }, data, place);
    charts.push({ plot, data });
  }
}

function addTo(table, values) {
  values.forEach((value, at) => {
    table[at].push(value);
    if (table[at].length > KEPT) table[at].shift();
  });
  for (const { plot, data } of charts) if (data[0] === table[0]) plot.setData(data);
}

// ---- dialogs and actions

function filled(template, values) {
  return template.replace(/\{(\w+)\}/g, (_, name) => encodeURIComponent(values[name] ?? ""));
}

function openDialog(button) {
  const dialog = document.getElementById(button.dataset.dialog);
  const form = dialog.querySelector("form");
  form.reset();
  form.values = { ...button.dataset };
  for (const place of form.querySelectorAll("[data-fill]")) place.textContent = form.values[place.dataset.fill];
  form.querySelector(".error").hidden = true;
  form.querySelector(".preview").hidden = true;
  dialog.showModal();
  checkConfirmed(form);
  if (form.dataset.preview) preview(form);
}

async function preview(form) {
  const place = form.querySelector(".preview");
  try {
    const answer = await ask("GET", filled(form.dataset.preview, form.values));
    place.textContent = words(answer);
  } catch (error) {
    place.textContent = error.message;
  }
  place.hidden = false;
}

function words(answer) {
  if (answer.moves) {
    const work = answer.moves.length + answer.renewals.length;
    return work ? `${answer.moves.length} replicas would move, ${answer.renewals.length} logs would use other nodes.` : "The load is even enough: there is nothing to do.";
  }
  const stops = answer.affected.filter((log) => log.appends_stop || log.reads_stop).map((log) => log.log);
  if (stops.length) return `If it were stopped now, these logs would stop: ${stops.join(", ")}.`;
  return answer.affected.length ? `${answer.affected.length} of ${answer.logs} logs have copies there; all would continue without it.` : "No log has copies there.";
}

function checkConfirmed(form) {
  const inputs = [...form.querySelectorAll("[data-confirm]")];
  form.querySelector("[type=submit]").disabled = inputs.some((input) => input.value !== input.dataset.confirm);
}

async function ask(method, path, body) {
  const options = { method, headers: { "X-Loom-Console": "1" } };
  if (body !== undefined) {
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  const response = await fetch(path, options);
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error.message);
  return answer;
}

function bodyOf(form) {
  const body = {};
  const record = {};
  for (const input of form.querySelectorAll("[name]")) {
    if (input.value === "") continue;
    if (input.dataset.kind === "record") record[input.name] = input.value;
    else body[input.name] = input.dataset.kind === "number" ? Number(input.value) : input.value;
  }
  return Object.keys(record).length ? { ...body, records: [record] } : body;
}

function result(answer) {
  if (answer.first) return answer.first === answer.last ? `Appended at position ${answer.first}.` : `Appended at positions ${answer.first} to ${answer.last}.`;
  if (answer.begun) return `${answer.begun.length} moves have begun, ${answer.left} are left.`;
  if (answer.done) return answer.next ? `${answer.done}; ${answer.next}` : answer.done;
  return "Done.";
}

async function submit(form) {
  const error = form.querySelector(".error");
  const button = form.querySelector("[type=submit]");
  error.hidden = true;
  button.disabled = true;
  try {
    const body = form.dataset.method === "DELETE" ? undefined : bodyOf(form);
    const answer = await ask(form.dataset.method, filled(form.dataset.path, form.values), body);
    form.closest("dialog").close();
    if (form.dataset.next) location.assign(filled(form.dataset.next, { ...form.values, ...body }));
    else say(result(answer));
  } catch (failure) {
    error.textContent = failure.message;
    error.hidden = false;
  } finally {
    button.disabled = false;
  }
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-dialog], [data-close]");
  if (!button) return;
  if (button.dataset.dialog) openDialog(button);
  else button.closest("dialog").close();
});
document.addEventListener("input", (event) => {
  const form = event.target.closest("form[data-method]");
  if (form) checkConfirmed(form);
});
document.addEventListener("submit", (event) => {
  if (!event.target.dataset.method) return;
  event.preventDefault();
  submit(event.target);
});

// ---- new entries of a log

const ROWS_KEPT = 500;
const follow = document.getElementById("follow");
let rows = null;

function followRows() {
  rows?.close();
  rows = null;
  if (!follow.checked) return;
  rows = new EventSource(follow.dataset.rows);
  const place = document.getElementById("rows");
  rows.addEventListener("rows", (event) => {
    place.insertAdjacentHTML("afterbegin", JSON.parse(event.data).html);
    while (place.children.length > ROWS_KEPT) place.lastElementChild.remove();
    follow.dataset.rows = follow.dataset.rows.replace(/from=.*/, `from=${Number(event.lastEventId) + 1}`);
  });
  rows.addEventListener("failure", (event) => { rows.close(); say(JSON.parse(event.data).error.message); });
}

follow?.addEventListener("change", followRows);

drawCharts();
listen();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawCharts);
new ResizeObserver(() => {
  for (const { plot } of charts) plot.setSize({ width: plot.root.parentElement.clientWidth, height: 130 });
}).observe(document.getElementById("main"));
