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

const FOCUSABLE = "a, button, input, summary, [tabindex]";

function replacePart(name, html) {
  const part = document.getElementById(name);
  if (!part || (name === "entries" && part.querySelector(".entry"))) return; // those that follow came first
  const selection = getSelection();
  if (selection && !selection.isCollapsed && part.contains(selection.anchorNode)) return;
  const focused = part.contains(document.activeElement) ? document.activeElement : null;
  const at = [...part.querySelectorAll(FOCUSABLE)].indexOf(focused);
  const open = [...part.querySelectorAll("details[open]")].map((details) => details.id);
  part.innerHTML = html;
  for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  if (!focused) return;
  // Elements with an id may have moved; of the others, the one in the same place is the same.
  const again = focused.id ? document.getElementById(focused.id) : part.querySelectorAll(FOCUSABLE)[at];
  again?.focus({ preventScroll: true });
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
    const { html, error } = JSON.parse(event.data);
    const place = away.querySelector("p") ?? away;
    if (html) place.innerHTML = html;
    else place.textContent = error.message;
    away.hidden = false;
  });
  for (const name of Object.keys(tables)) source.addEventListener(name, (event) => addTo(name, JSON.parse(event.data)));
  source.addEventListener("reload", () => location.reload());
  addEventListener("pagehide", () => source.close());
}

// ---- charts

const KEPT = 300;
const tables = { rates: [], latencies: [], operations: [] }; // of each: times, values, …
const charts = [];

function drawCharts() {
  for (const place of document.querySelectorAll(".chart")) {
    const [name, ...columns] = place.dataset.values.split(" ");
    const table = tables[name];
    const data = [0, ...columns.map(Number)].map((at) => (table[at] ??= []));
    charts.push(new Chart(place, data, (place.dataset.names ?? "").split(",")));
  }
}

function addTo(name, values) {
  const table = tables[name];
  values.forEach((value, at) => {
    const column = (table[at] ??= []);
    column.push(value);
    if (column.length > KEPT) column.shift();
  });
  for (const chart of charts) if (chart.data[0] === table[0]) chart.draw();
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
    if (answer.moves && !workOf(answer)) form.querySelector("[type=submit]").disabled = true;
  } catch (error) {
    place.textContent = error.message;
  }
  place.hidden = false;
}

function workOf(plan) {
  return plan.moves.length + plan.renewals.length;
}

function words(answer) {
  if (answer.moves) {
    return workOf(answer) ? `${answer.moves.length} replicas would move, ${answer.renewals.length} logs would use other nodes.` : "The load is even enough: there is nothing to do.";
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

// A position as pages show it: 4,200, or e3n17. What is none is for the API to refuse.
function position(text) {
  const parts = /^\s*e(\d+)n(\d+)\s*$/.exec(text);
  const number = parts ? Number(parts[1]) * 2 ** 32 + Number(parts[2]) : Number(text.replaceAll(",", ""));
  return Number.isNaN(number) ? text : number;
}

const VALUES = { number: Number, position };

function bodyOf(form) {
  const body = {};
  const record = {};
  for (const input of form.querySelectorAll("[name]")) {
    if (input.value === "") continue;
    if (input.dataset.kind === "record") record[input.name] = input.value;
    else body[input.name] = (VALUES[input.dataset.kind] ?? String)(input.value);
  }
  return Object.keys(record).length ? { ...body, records: [record] } : body;
}

function result(answer) {
  if (answer.first) return answer.first === answer.last ? `Appended at position ${answer.first}.` : `Appended at positions ${answer.first} to ${answer.last}.`;
  if (answer.begun) return `${answer.begun.length} moves have begun, ${answer.left} are left.`;
  if (answer.head) return `The log begins at ${answer.head.toLocaleString("en")} now.`;
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
  rows.addEventListener("rows", (event) => {
    const place = document.getElementById("rows"); // a search may have replaced it
    if (document.getElementById(`entry-${event.lastEventId}`)) return;
    document.querySelector("#entries .note")?.remove();
    place.insertAdjacentHTML("afterbegin", JSON.parse(event.data).html);
    while (place.children.length > ROWS_KEPT) place.lastElementChild.remove();
    follow.dataset.rows = follow.dataset.rows.replace(/from=.*/, `from=${Number(event.lastEventId) + 1}`);
  });
  rows.addEventListener("failure", (event) => { rows.close(); say(JSON.parse(event.data).error.message); });
}

follow?.addEventListener("change", followRows);

drawCharts();
listen();
document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
new ResizeObserver(() => charts.forEach((chart) => chart.draw())).observe(document.getElementById("main"));
