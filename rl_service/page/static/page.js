"use strict";
// Runs, experiments and policies, for people. All data come from the routes under v1/; paths are
// relative, so that the page also works behind a prefix. Names and model cards may be a stranger's:
// they only ever become text nodes, never HTML.

const RUNS_EVERY_MS = 2000, EXPERIMENTS_EVERY_MS = 5000;
const FIRST_TICKED = 5, MAX_CURVES = 50, POINTS_PER_CURVE = 400; // of one request to v1/curves
const MAX_CHART_POINTS = 1200; // of all curves together, so that 50 of them are drawn quickly
const NUM_COLOURS = 8;
const MAX_INPUTS = 64; // an observation with more numbers is edited as text
const MAX_BARS = 24, NUDGE_PAUSE_MS = 150;
const METRICS = {
  "episode_return_mean": "Return", "evaluation/episode_return_mean": "Evaluation return",
  "episode_len_mean": "Episode length", "env_steps_per_s": "Steps per second",
  "num_env_runners": "Rollout workers", "entropy": "Entropy", "mean_kl_loss": "KL divergence",
  "policy_loss": "Policy loss", "vf_loss": "Critic loss", "clip_fraction": "Clipped share",
  "vf_explained_var": "Explained variance", "actor_lr": "Learning rate", "weights_lag": "Age of weights",
};

// --------------------------------------------------------------------------- elements and numbers
const $ = id => document.getElementById(id);
const isMissing = value => value === null || value === undefined;

/** An element. Props named on* are listeners; those that it does not have become attributes. */
function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (isMissing(value) || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.flat().filter(child => !isMissing(child)));
  return element;
}
function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Text is only written if it differs: screen readers announce every write to a live region. */
function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const row = (...children) => h("div", { className: "row" }, ...children);
const hint = (text, role) => h("p", { className: "hint", role }, text);
const button = (text, onclick, className) => h("button", { type: "button", onclick, className }, text);
const panel = (heading, ...children) =>
  h("section", { className: "panel" }, heading && h("h2", {}, heading), ...children);
/** A box that scrolls by itself, with the keyboard too. */
const scrollBox = (label, child, className = "") =>
  h("div", { className: `scroll ${className}`, tabIndex: 0, role: "region", "aria-label": label }, child);

function choice(label, options, selected, onchange) {
  const entries = Object.entries(options).map(([value, text]) => new Option(text, value, false, value === selected));
  const select = h("select", { onchange: () => onchange(select.value) }, entries);
  return h("label", {}, `${label} `, select);
}
function checkbox(text, onchange) {
  const box = h("input", { type: "checkbox", onchange: () => onchange(box.checked) });
  return { box, label: h("label", { className: "check" }, box, text) };
}
function showFacts(list, facts) {
  list.replaceChildren(...Object.entries(facts).flatMap(([name, value]) => [h("dt", {}, name),
    h("dd", {}, typeof value === "object" && value ? JSON.stringify(value) : num(value))]));
  return list;
}
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

function num(value) {
  if (typeof value !== "number") return isMissing(value) ? "–" : String(value);
  const size = Math.abs(value);
  if (size >= 1e4) return compact.format(value);
  if (Number.isInteger(value)) return String(value);
  if (size >= 1) return value.toFixed(size >= 1000 ? 0 : size >= 100 ? 1 : 2);
  return String(+value.toPrecision(3));
}

const percent = share => `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`;
const duration = s => s < 120 ? `${num(s)} s` : s < 7200 ? `${num(+(s / 60).toFixed(1))} min`
  : `${num(+(s / 3600).toFixed(1))} h`;

/** Unix seconds or a date as text. */
function when(moment) {
  const date = new Date(typeof moment === "number" ? 1000 * moment : moment);
  if (isMissing(moment) || Number.isNaN(date.getTime())) return num(moment);
  const rest = date.getFullYear() === new Date().getFullYear() ? { hour: "2-digit", minute: "2-digit" }
    : { year: "numeric" };
  return date.toLocaleString("en-GB", { day: "numeric", month: "short", ...rest });
}
const wait = ms => new Promise(done => setTimeout(done, ms));

/** Reads or writes what the browser keeps. Storage may be switched off: then it keeps nothing. */
function remember(storage, key, value) {
  try {
    return value === undefined ? window[storage].getItem(key) : window[storage].setItem(key, value);
  } catch { return null; }
}

// --------------------------------------------------------------------------- the server
const ADVICE = { // by the error's code, else by its status
  0: "Check that it still runs.", 413: "Send less at once.",
  503: "Try again in a moment.",
  too_many_plays: "Close another Play page, then press Start.",
};
const PLAY_ADVICE = { ...ADVICE, 409: "Press Reset to go on.", 404: "Press Start for a new play.",
  play_failed: "Press Start for a new play." };

class ApiError extends Error {
  constructor(status, code, message) { super(message); Object.assign(this, { status, code }); }
}
let token = remember("sessionStorage", "rl-service-token") || "";

async function call(path, { method = "GET", body, signal, keepalive, as = "json" } = {}) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  if (method === "POST") headers["Content-Type"] = "application/json";
  const options = { method, headers, signal, keepalive, body: body && JSON.stringify(body) };
  const reply = await fetch(path, options).catch(error => {
    throw error.name === "AbortError" ? error : new ApiError(0, "", "The server does not answer");
  });
  if (reply.ok) return reply[as]();
  const { error } = await reply.json().catch(() => ({})); // a proxy's own pages are not JSON
  const message = error?.message || `The server answered ${reply.status} ${reply.statusText}`;
  throw new ApiError(reply.status, error?.code, message);
}

/** An error in words, with what to do about it. */
function explain(error, advice) {
  const sentence = error.message.replace(/^./, first => first.toUpperCase()).replace(/[.;]?$/, ".");
  if (!(error instanceof ApiError)) return `This page has a fault: ${sentence} Reload it.`;
  return `${sentence} ${advice[error.code] ?? advice[error.status] ?? ""}`.trim();
}
const say = text => write($("status"), text);

/** Shows what went wrong; null: nothing any more. */
function fail(error, advice = ADVICE) {
  if (error?.name === "AbortError") return;
  if (error?.status === 401) askToken();
  write($("error"), error && error.status !== 401 ? explain(error, advice) : "");
}
function askToken() {
  if (!$("token-form").hidden) return;
  write($("token-text"), token ? "The service did not accept this token."
    : "This service needs a token. This tab keeps it until it is closed.");
  $("token-form").hidden = false;
  $("token").focus();
}
function useToken(event) {
  event.preventDefault();
  token = $("token").value.trim();
  remember("sessionStorage", "rl-service-token", token);
  Object.assign($("token-form"), { hidden: true }).reset();
  route();
}

// --------------------------------------------------------------------------- views
/** What a view has started. Leaving the view ends all of it. */
class Scope {
  constructor() { this.abort = new AbortController(); this.leaving = []; }
  get left() { return this.abort.signal.aborted; }
  call(path, options) { return call(path, { signal: this.abort.signal, ...options }); }
  listen(target, type, work) { target.addEventListener(type, work, { signal: this.abort.signal }); }
  onLeave(work) { this.leaving.push(work); }
  leave() { this.abort.abort(); this.leaving.forEach(work => work()); }
  /** Repeats `work` while the tab is shown. Returns what repeats it at once. */
  poll(work, pauseMs) {
    let timer = 0, isBusy = false, isWanted = false;
    const turn = async () => {
      clearTimeout(timer);
      isWanted = true;
      if (isBusy || this.left || document.hidden) return;
      isBusy = true;
      while (isWanted && !this.left) {
        isWanted = false;
        await work().then(() => fail(null), fail);
      }
      isBusy = false;
      if (!this.left && $("token-form").hidden) timer = setTimeout(turn, pauseMs);
    };
    this.onLeave(() => clearTimeout(timer));
    this.listen(document, "visibilitychange", turn);
    turn();
    return turn;
  }
}

const VIEWS = new Map([["runs", scope => new RunsPage(scope)], ["experiments", showExperiments],
  ["policies", showPolicies], ["play", showPlay], ["try", showTry]]);
let scope = new Scope();
let server = null; // what GET v1 says
const link = (text, ...parts) => h("a", { href: `#/${parts.map(encodeURIComponent).join("/")}` }, text);

/** Links to pages, given as {page: text}, one of which is shown now. */
const pageLinks = (pages, here, ...rest) => Object.entries(pages).map(([page, text]) => {
  const anchor = link(text, page, ...rest);
  if (page === here) anchor.setAttribute("aria-current", "page");
  return anchor;
});

async function route() {
  scope.leave();
  const mine = scope = new Scope();
  say(""); fail(null);
  $("view").replaceChildren();
  try {
    server ??= await mine.call("v1");
    const [, wanted, ...rest] = location.hash.split("/");
    const name = VIEWS.has(wanted) ? wanted : server.runs ? "runs" : "policies";
    const pages = { ...(server.runs && { runs: "Runs", experiments: "Experiments" }), policies: "Policies" };
    $("nav").replaceChildren(...pageLinks(pages, name in pages ? name : "policies"));
    await VIEWS.get(name)(mine, decodeURIComponent(rest.join("/")));
  } catch (error) {
    if (error instanceof URIError) location.hash = ""; // a broken link
    else if (!mine.left) fail(error);
  }
}
function title(text) {
  write($("title"), text);
  document.title = `${text} – rl-service`;
}

// --------------------------------------------------------------------------- tables
const NUMBER = { number: true };
/** A column sorts by `value`. It shows `text`, if that differs, or `node`, made once per row. */
const column = (title, value, more = {}) => ({ title, value, text: each => num(value(each)), ...more });

/** A sortable table whose rows are updated in place, so that focus and ticks survive. */
class LiveTable {
  constructor(label, columns, { sort, descending = true, className = "" }) {
    Object.assign(this, { columns, sort, descending, rows: [], trs: new Map(), keep: () => true });
    this.heads = columns.map(each => h("th", { className: each.number ? "number" : "", scope: "col" },
      each.head ?? (each.value ? button(each.title, () => this.sortBy(each)) : each.title)));
    this.body = h("tbody");
    const head = h("thead", {}, h("tr", {}, this.heads));
    this.element = scrollBox(label, h("table", { className: "full" }, head, this.body), className);
  }
  sortBy(column) {
    this.descending = this.sort === column.title ? !this.descending : Boolean(column.number);
    this.sort = column.title;
    this.render();
  }
  set(rows) {
    this.rows = rows;
    const ids = new Set(rows.map(each => each.id));
    for (const id of this.trs.keys()) if (!ids.has(id)) this.trs.delete(id);
    this.render();
  }
  /** The rows that the filter keeps, in order. */
  shown() {
    const { value } = this.columns.find(each => each.title === this.sort);
    return this.rows.filter(this.keep).sort((a, b) => this.compare(value(a), value(b)));
  }
  compare(a, b) {
    if (isMissing(a) || isMissing(b)) return isMissing(a) - isMissing(b); // last in either order
    const order = typeof a === "number" && typeof b === "number" ? a - b
      : String(a).localeCompare(String(b), "en", { numeric: true });
    return this.descending ? -order : order;
  }
  render() {
    this.columns.forEach((each, i) => {
      if (each.title !== this.sort) this.heads[i].removeAttribute("aria-sort");
      else this.heads[i].setAttribute("aria-sort", this.descending ? "descending" : "ascending");
    });
    const focused = document.activeElement, { body } = this;
    const wanted = this.shown().map(each => this.update(each));
    wanted.forEach((tr, i) => { if (body.children[i] !== tr) body.insertBefore(tr, body.children[i]); });
    while (body.children.length > wanted.length) body.lastChild.remove();
    // A row that moves loses the focus.
    if (document.activeElement !== focused && body.contains(focused)) focused.focus();
  }
  update(item) {
    if (!this.trs.has(item.id)) this.trs.set(item.id, h("tr", {}, this.columns.map(each =>
      h("td", { className: each.number ? "number" : each.className ?? "" }, each.node?.(item)))));
    const tr = this.trs.get(item.id);
    this.columns.forEach((each, i) => { if (!each.node) write(tr.children[i], each.text(item)); });
    tr.dataset.state = item.state ?? "";
    return tr;
  }
}

// --------------------------------------------------------------------------- curves
/** A colour of the style sheet in the theme that is shown, as a canvas wants it. */
function colour(name, alpha = 1) {
  const probe = document.body.appendChild(h("span"));
  probe.style.color = `var(--${name})`;
  const found = getComputedStyle(probe).color;
  probe.remove();
  return alpha === 1 ? found : found.replace("rgb(", "rgba(").replace(")", `, ${alpha})`);
}

/** uPlot's columns: one x for all curves, then mean, low and high of each. */
function alignCurves(groups) {
  const all = [...new Set(groups.flatMap(group => group.x))].sort((a, b) => a - b);
  const ends = new Set(groups.flatMap(({ x }) => [x[0], x[x.length - 1]]));
  const stride = Math.ceil(all.length / MAX_CHART_POINTS);
  const xs = all.filter((x, i) => i % stride === 0 || ends.has(x));
  return [xs, ...groups.flatMap(({ x, mean, low, high }) => [mean, low, high].map(y => interpolate(x, y, xs)))];
}

/** y(x) at `places`, linear between what is known and null outside. */
function interpolate(x, y, places) {
  const known = x.map((_, i) => i).filter(i => y[i] !== null);
  let k = 0;
  return places.map(place => {
    while (k < known.length && x[known[k]] < place) k++;
    if (k === known.length) return null;
    const right = known[k], left = known[k - 1];
    if (x[right] === place) return y[right];
    return k ? y[left] + (y[right] - y[left]) * (place - x[left]) / (x[right] - x[left]) : null;
  });
}

/** Curves with their bands, and a legend that shows the values under the pointer. */
class Chart {
  constructor(scope) {
    this.colours = new Map(); // of the labels that are shown: each keeps its own
    this.box = h("div", { className: "chart", role: "img" });
    this.legend = h("ul", { className: "legend", tabIndex: 0, "aria-label": "Legend" });
    this.groups = [];
    const size = () => ({ width: this.box.clientWidth, height: this.box.clientHeight });
    const observer = new ResizeObserver(() => this.box.clientWidth && this.plot?.setSize(size()));
    observer.observe(this.box);
    scope.onLeave(() => { observer.disconnect(); this.plot?.destroy(); });
    scope.listen(document, "themechange", () => this.rebuild());
  }
  set(groups, metric, x) {
    Object.assign(this, { groups, metric, x, data: alignCurves(groups) });
    this.box.hidden = groups.length === 0;
    this.assignColours(groups.map(group => group.label));
    const shape = JSON.stringify([metric, x, groups.map(({ label, runs }) => [label, runs])]);
    if (shape === this.shape && this.plot) this.refresh();
    else this.rebuild();
    this.shape = shape;
  }
  assignColours(labels) {
    for (const label of this.colours.keys()) if (!labels.includes(label)) this.colours.delete(label);
    for (const label of labels.filter(each => !this.colours.has(each))) {
      const taken = [...this.colours.values()];
      this.colours.set(label, labels.map((_, i) => i).find(i => !taken.includes(i)));
    }
  }
  /** Classes of a label's swatch. Once the colours are used up, lines are dashed. */
  swatch(label) {
    const index = this.colours.get(label);
    if (index === undefined) return "swatch";
    return `swatch s${index % NUM_COLOURS} ${index < NUM_COLOURS ? "" : "dashed"}`;
  }
  /** New data of the same curves; a zoom stays. */
  refresh() {
    const { min, max } = this.plot.scales.x, xs = this.plot.data[0];
    const isZoomed = min > xs[0] || max < xs[xs.length - 1];
    this.plot.batch(() => {
      this.plot.setData(this.data, !isZoomed);
      if (isZoomed) this.plot.setScale("x", { min, max });
    });
    this.showValues();
  }
  rebuild() {
    this.plot?.destroy();
    this.values = this.groups.map(() => h("span", { className: "value" }));
    this.legend.replaceChildren(...this.groups.map((group, i) => this.legendItem(group, this.values[i])));
    this.plot = this.groups.length ? new uPlot(this.options(), this.data, this.box) : null;
    this.showValues();
  }
  options() {
    const font = "12px system-ui, sans-serif", grid = { stroke: colour("line"), width: 1 };
    const axis = { stroke: colour("soft"), font, grid, ticks: grid };
    const unit = this.x === "time" ? duration : num;
    return {
      width: this.box.clientWidth, height: this.box.clientHeight,
      legend: { show: false }, scales: { x: { time: false } },
      cursor: { points: { show: false }, drag: { x: true, y: false } },
      axes: [{ ...axis, size: 36, values: (_, marks) => marks.map(unit) },
        { ...axis, size: 58, values: (_, marks) => marks.map(num) }],
      series: [{}, ...this.groups.flatMap(group => this.series(group))],
      bands: this.groups.map((group, i) => ({ series: [3 * i + 3, 3 * i + 2], // from high to low
        fill: colour(this.mark(group), group.runs.length > 1 ? 0.16 : 0) })),
      hooks: { setCursor: [() => this.showValues()] },
    };
  }
  mark(group) { return `s${this.colours.get(group.label) % NUM_COLOURS}`; }
  series(group) {
    const edge = { width: 0, stroke: "transparent", points: { show: false }, spanGaps: true };
    const stroke = colour(this.mark(group));
    const dash = this.colours.get(group.label) < NUM_COLOURS ? undefined : [6, 4];
    const points = { show: group.x.length === 1, size: 7, fill: stroke };
    return [{ stroke, width: 2, dash, points, spanGaps: true }, edge, edge];
  }
  legendItem({ label, runs, seeds }, value) {
    const name = `${label} · ${runs.length > 1 ? `${runs.length} seeds` : `seed ${seeds[0]}`}`;
    return h("li", {}, h("span", { className: this.swatch(label) }),
      h("span", { className: "label", title: name }, name), value);
  }
  /** The values under the pointer, or the last ones. */
  showValues() {
    const { idx: index, left } = this.plot?.cursor ?? {};
    const end = left >= 0 && !isMissing(index) ? index + 1 : undefined;
    const summary = this.groups.map((group, i) => {
      const at = curve => num(this.data[3 * i + curve].slice(0, end).filter(y => y !== null).pop());
      write(this.values[i], group.runs.length > 1 ? `${at(1)} (${at(2)} to ${at(3)})` : at(1));
      return `${group.label}: ${this.values[i].textContent}`;
    });
    if (!end) this.box.setAttribute("aria-label", `${METRICS[this.metric]}, last values: ${summary.join("; ")}`);
  }
}

// --------------------------------------------------------------------------- runs
/** What the list of runs is set to. It stays so when one comes back to it. */
const runsMemory = { ticked: null, words: "", metric: "episode_return_mean", x: "steps" };

/** The state, and how far a run is on the way to where it stops. */
function stateText({ state, stop = {}, iterations, env_steps: envSteps }) {
  const shares = [[iterations, stop.iterations], [envSteps, stop.env_steps]]
    .filter(([, end]) => end).map(([done, end]) => done / end);
  return state === "running" && shares.length ? `running ${percent(Math.min(1, Math.max(...shares)))}` : state;
}

class RunsPage {
  constructor(scope) {
    this.scope = scope;
    this.chart = new Chart(scope);
    this.labelOf = new Map(); // run id → label of its curve
    this.all = checkbox("All shown", isTicked =>
      this.setTicks(this.table.shown().map(run => run.id), isTicked));
    this.table = new LiveTable("Runs", this.columns(), { sort: "Started", className: "tall" });
    this.table.keep = run => this.matches(run);
    this.count = hint("", "status");
    this.note = hint("");
    title("Runs");
    $("view").append(panel(null, this.chartRow(), this.chart.box, this.chart.legend, this.note),
      panel(null, this.filterRow(), this.table.element));
    this.now = scope.poll(() => this.load(), RUNS_EVERY_MS);
  }
  columns() {
    return [
      { title: "", head: this.all.label, className: "tick", node: run => this.tick(run) },
      column("Environment", run => run.env), column("Model", run => run.model),
      column("Algorithm", run => run.algorithm), column("Seed", run => run.seed, NUMBER),
      column("Steps", run => run.env_steps, NUMBER), column("Return", run => run.return, NUMBER),
      column("Evaluation", run => run.evaluation, NUMBER), column("Workers", run => run.workers, NUMBER),
      column("Steps/s", run => run.env_steps_per_s, NUMBER),
      column("State", run => run.state, { text: stateText, className: "state" }),
      column("Started", run => run.started, { text: run => when(run.started), ...NUMBER }),
    ];
  }
  chartRow() {
    const set = key => value => { runsMemory[key] = value; this.now(); };
    return row(choice("Metric", METRICS, runsMemory.metric, set("metric")),
      choice("over", { steps: "environment steps", time: "training time" }, runsMemory.x, set("x")),
      hint("Drag to zoom, double-click to zoom out"));
  }
  filterRow() {
    const input = h("input", { type: "search", className: "grow", value: runsMemory.words,
      placeholder: "Filter, for example: cartpole ppo running", "aria-label": "Filter runs",
      oninput: () => { runsMemory.words = input.value; this.show(); } });
    return row(input, button("Clear selection", () => this.setTicks([...runsMemory.ticked], false)), this.count);
  }
  matches(run) {
    const text = `${run.id} ${run.env} ${run.model} ${run.algorithm} seed ${run.seed} ${run.state}`.toLowerCase();
    return runsMemory.words.toLowerCase().split(/\s+/).every(word => text.includes(word));
  }
  tick(run) {
    const { box, label } = checkbox("", isTicked => this.setTicks([run.id], isTicked));
    box.setAttribute("aria-label", `Compare ${run.env}, ${run.model}, seed ${run.seed}, ${run.id}`);
    label.title = run.id;
    label.append(h("span"));
    return label;
  }
  setTicks(ids, isTicked) {
    const others = [...runsMemory.ticked ?? []].filter(id => !ids.includes(id));
    runsMemory.ticked = new Set(isTicked ? [...others, ...ids] : others);
    this.show();
    this.now();
  }
  async load() {
    const { runs } = await this.scope.call("v1/runs");
    const ids = runs.map(run => run.id), { ticked } = runsMemory;
    runsMemory.ticked = new Set(ticked ? ids.filter(id => ticked.has(id)) : ids.slice(0, FIRST_TICKED));
    this.table.set(runs);
    this.show();
    await this.draw();
  }
  show() {
    const { ticked } = runsMemory;
    if (!ticked) return; // nothing has arrived so far
    this.table.render();
    const shown = this.table.shown();
    for (const [id, tr] of this.table.trs) {
      const label = tr.querySelector("label");
      label.firstChild.checked = ticked.has(id);
      label.lastChild.className = this.chart.swatch(this.labelOf.get(id));
    }
    const numTicked = shown.filter(run => ticked.has(run.id)).length;
    this.all.box.checked = shown.length > 0 && numTicked === shown.length;
    this.all.box.indeterminate = numTicked > 0 && numTicked < shown.length;
    const total = this.table.rows.length;
    write(this.count, total ? `${shown.length} of ${total} runs, ${ticked.size} selected`
      : "No runs here yet. “rl-service train” writes one.");
  }
  /** Asks for the curves only if something about them may have changed. */
  async draw() {
    const runs = this.table.rows.filter(run => runsMemory.ticked.has(run.id)).slice(0, MAX_CURVES);
    const { metric, x } = runsMemory;
    const wanted = JSON.stringify([metric, x, runs.map(run => [run.id, run.updated, run.env_steps])]);
    if (wanted === this.drawn) return;
    const query = new URLSearchParams([["metric", metric], ["x", x], ["points", POINTS_PER_CURVE],
      ...runs.map(run => ["run", run.id])]);
    const found = runs.length ? (await this.scope.call(`v1/curves?${query}`)).groups : [];
    const groups = found.filter(group => group.x.length > 0);
    this.labelOf = new Map(groups.flatMap(({ label, runs }) => runs.map(id => [id, label])));
    this.chart.set(groups, metric, x);
    this.drawn = wanted;
    const numTicked = runsMemory.ticked.size, numEmpty = runs.length - this.labelOf.size;
    write(this.note, (numTicked ? "" : "Tick runs in the list to compare them.") +
      (numTicked > runs.length ? `The chart shows the newest ${runs.length} of ${numTicked}. ` : "") +
      (numEmpty ? `${numEmpty} of the selected runs have no such numbers yet.` : ""));
    this.show();
  }
}

// --------------------------------------------------------------------------- experiments
function showExperiments(scope, id) {
  if (id) { showExperiment(scope, id); return; }
  title("Experiments");
  const table = new LiveTable("Experiments", [
    column("Name", each => each.name, { node: each => link(each.name, "experiments", each.id) }),
    column("State", each => each.state, { className: "state" }),
    column("Trials", each => each.num_trials, NUMBER), column("Metric", each => each.metric),
    column("Best", each => each.best?.score, NUMBER),
    column("Started", each => each.started, { text: each => when(each.started), ...NUMBER }),
  ], { sort: "Started" });
  $("view").append(panel(null, table.element));
  scope.poll(async () => {
    const { experiments } = await scope.call("v1/experiments");
    table.set(experiments);
    say(experiments.length ? "" : "No experiments here yet. “rl-service tune” writes one.");
  }, EXPERIMENTS_EVERY_MS);
}

function showExperiment(scope, id) {
  title("Experiment");
  const facts = h("dl"), drawing = h("div"), trials = panel("Trials");
  $("view").append(h("p", {}, link("All experiments", "experiments")), h("div", { className: "columns aside" },
    panel("Best", facts), panel("Settings and score of each trial", drawing)), trials);
  let table = null, drawn = "";
  scope.poll(async () => {
    const found = await scope.call(`v1/experiments/${encodeURIComponent(id)}`);
    const { best, metric, state, num_trials: numTrials, parameters } = found;
    title(found.name);
    showFacts(facts, { ...(best ? { [metric]: best.score, trial: best.id, ...best.values } : {}),
      state: `${state}, ${numTrials} trials${best ? "" : ", none with a score yet"}` });
    const shape = JSON.stringify([parameters, found.trials, best?.id]);
    if (shape === drawn) return;
    drawn = shape;
    drawing.replaceChildren(scrollBox("Parallel coordinates", parallel(found)));
    if (!table) trials.append((table = trialsTable(parameters)).element);
    table.set(found.trials);
    for (const [id, tr] of table.trs) tr.classList.toggle("best", id === best?.id);
  }, EXPERIMENTS_EVERY_MS);
}
function trialsTable(parameters) {
  return new LiveTable("Trials", [
    column("Trial", trial => trial.id), column("State", trial => trial.state, { className: "state" }),
    column("Score", trial => trial.score, NUMBER),
    ...parameters.map(({ name }) => column(name, trial => trial.values[name], NUMBER)),
    column("Steps", trial => trial.env_steps, NUMBER),
    column("Error", trial => trial.error, { text: trial => trial.error ?? "", className: "long" }),
  ], { sort: "Score", className: "tall" });
}

const AXIS_GAP = 134, AXIS_TOP = 34, AXIS_BOTTOM = 254;
/** Parallel coordinates: an axis per setting and one for the score, the best trial on top. */
function parallel({ parameters, trials, metric, best }) {
  const scored = trials.filter(trial => !isMissing(trial.score))
    .sort((a, b) => (a.id === best?.id) - (b.id === best?.id));
  const axes = parameters.map(({ name, log }) => ({ name, log, read: trial => trial.values[name] }));
  axes.push({ name: metric, read: trial => trial.score });
  axes.forEach((axis, i) => Object.assign(axis, { x: (i + 0.5) * AXIS_GAP },
    axisScale(scored.map(axis.read).filter(value => !isMissing(value)), axis.log)));
  const summary = axes.map(axis => `${axis.name} ${num(best && axis.read(best))}`).join(", ");
  return svg("svg", { class: "parallel", role: "img", height: 274, width: axes.length * AXIS_GAP,
    "aria-label": `Settings of ${scored.length} trials. The best: ${summary}` },
  ...scored.map(trial => drawTrial(trial, axes, best)), ...axes.map(drawAxis));
}

/** Where values lie on an axis; words lie at even distances. */
function axisScale(values, isLog) {
  const at = share => AXIS_BOTTOM - (Number.isFinite(share) ? share : 0.5) * (AXIS_BOTTOM - AXIS_TOP);
  if (values.some(value => typeof value !== "number")) {
    const words = [...new Set(values.map(String))].sort();
    return { place: value => at(words.indexOf(String(value)) / (words.length - 1)), marks: words };
  }
  const low = Math.min(...values), high = Math.max(...values);
  const warp = isLog && low > 0 ? Math.log : value => value;
  const place = value => at((warp(value) - warp(low)) / (warp(high) - warp(low)));
  return { place, marks: values.length ? [...new Set([low, high])] : [] };
}
function drawAxis({ name, log, x, place, marks }) {
  const shown = (name.length > 17 ? `…${name.slice(-16)}` : name) + (log ? " (log)" : "");
  return svg("g", {}, svg("line", { class: "axis", x1: x, x2: x, y1: AXIS_TOP, y2: AXIS_BOTTOM }),
    svg("text", { class: "name", x, y: 14, "text-anchor": "middle" }, shown, svg("title", {}, name)),
    ...marks.map(mark => svg("text", { x: x + 6, y: place(mark) + 4 }, num(mark))));
}
function drawTrial(trial, axes, best) {
  const known = axes.filter(axis => !isMissing(axis.read(trial)));
  const points = known.map(axis => `${axis.x},${axis.place(axis.read(trial)).toFixed(1)}`).join(" ");
  const { place } = axes[axes.length - 1], isBest = trial.id === best?.id;
  const distance = Math.abs(place(trial.score) - place(best?.score)) / (AXIS_BOTTOM - AXIS_TOP);
  const opacity = isBest ? 1 : 0.75 - 0.5 * distance; // the nearer to the best, the clearer
  return svg("polyline", { points, class: isBest ? "best" : "", opacity },
    svg("title", {}, `${trial.id}: ${num(trial.score)}`));
}

// --------------------------------------------------------------------------- policies
const baseName = name => name.replace(/:\d+$/, "");

/** What v1/policies says of one, given as name or name:version. */
async function findPolicy(scope, name) {
  const found = (await scope.call("v1/policies")).policies.find(each => each.policy === baseName(name));
  if (found) return found;
  throw new ApiError(404, "unknown_policy", `No policy “${name}” is served here`);
}

async function showPolicies(scope, name) {
  if (name) { await showPolicy(scope, name); return; }
  title("Policies");
  const { policies } = await scope.call("v1/policies");
  if (!policies.length) say("No policies are served here. “rl-service serve POLICY” serves some.");
  const table = new LiveTable("Policies", [
    column("Policy", each => each.policy, { node: each => link(each.policy, "policies", each.policy) }),
    column("Version", each => each.version, { text: each => String(each.version), ...NUMBER }),
    column("Environment", each => each.env), column("Model", each => each.model),
    column("Return", each => each.episode_return_mean, NUMBER),
    { title: "Open", className: "links", node: each => h("span", {},
      server.play ? link("Play", "play", each.policy) : null, link("Try it", "try", each.policy)) },
  ], { sort: "Policy", descending: false });
  table.set(policies.map(policy => ({ ...policy, id: policy.policy })));
  $("view").append(panel(null, table.element));
}

/** The three pages of one policy. */
const policyTabs = (name, here) => h("nav", { className: "tabs", "aria-label": "Pages of the policy" },
  pageLinks({ policies: "About", ...(server.play && { play: "Play" }), try: "Try it" }, here, baseName(name)));

async function showPolicy(scope, name) {
  title(name);
  const path = `v1/policies/${encodeURIComponent(name)}`;
  const [policy, card] = await Promise.all([findPolicy(scope, name), scope.call(`${path}/card`)]);
  const { max_episode_steps: limit, context_length: steps } = policy;
  const facts = { version: String(card.version), environment: policy.env, model: policy.model,
    observation: spaceText(policy.observation_space), action: spaceText(policy.action_space),
    reads: steps > 1 ? `the last ${steps} steps` : "one observation",
    "time limit": limit ? `${limit} steps` : "the environment’s own" };
  const text = h("div", { className: "card" }, markdown(card.card ?? ""));
  $("view").append(policyTabs(name, "policies"), h("div", { className: "columns" },
    h("div", {}, panel("Policy", showFacts(h("dl"), facts)),
      panel("Evaluation", showFacts(h("dl"), card.evaluation ?? {})), versionsPanel(name, card)),
    h("div", {}, replayPanel(scope, `${path}/replay`), panel("Model card", text))));
}
function spaceText({ type, n, start, low, high, dtype, shape, nvec, max_length, spaces }) {
  if (type === "Discrete") return `${n} choices, ${start} to ${start + n - 1}`;
  if (type === "MultiDiscrete") return `choices among ${nvec.join(", ")}, shape [${shape.join(", ")}]`;
  if (type === "MultiBinary") return `zeros and ones, shape [${shape.join(", ")}]`;
  if (type === "Text") return `a text of up to ${max_length} characters`;
  if (type === "Tuple") return spaces.map(each => `(${spaceText(each)})`).join(", ");
  if (type === "Dict") return Object.entries(spaces).map(([name, each]) => `${name}: ${spaceText(each)}`).join("; ");
  const bounds = new Set(low.map((each, i) => `${num(each ?? "-∞")} to ${num(high[i] ?? "∞")}`));
  const text = `${low.length} ${dtype} numbers, shape [${shape.join(", ")}]`;
  return bounds.size > 8 ? text : `${text}, from ${[...bounds].join(", ")}`;
}

function versionsPanel(name, { versions, version }) {
  const aliases = each => (each.aliases ?? []).concat(each.version === version ? "served" : []).join(", ");
  const table = new LiveTable("Versions", [
    column("Version", each => each.version, { text: each => String(each.version), ...NUMBER }),
    column("Aliases", aliases), column("Return", each => each.episode_return_mean, NUMBER),
    column("Created", each => each.created, { text: each => when(each.created), ...NUMBER }),
    column("Model", each => each.model),
    { title: "Open", node: each => link("Try it", "try", `${baseName(name)}:${each.version}`) },
  ], { sort: "Version" });
  table.set(versions.map(each => ({ ...each, id: each.version })));
  return versions.length ? panel("Versions", table.element) : null;
}

/** A video is made when it is asked for, and fetched, since a <video> cannot send a token. */
function replayPanel(scope, path) {
  const record = button("Record an episode", async () => {
    record.disabled = true;
    say("Recording an episode …");
    try {
      const src = URL.createObjectURL(await scope.call(path, { method: "POST", body: {}, as: "blob" }));
      scope.onLeave(() => URL.revokeObjectURL(src));
      record.replaceWith(h("video", { src, controls: true, loop: true, muted: true, autoplay: true,
        playsInline: true, "aria-label": "One episode of the policy" }));
      say("");
    } catch (error) {
      record.disabled = false;
      say("");
      fail(error);
    }
  });
  return panel("Replay", record);
}

// Markdown, as much of it as model cards use. Links and HTML stay text.
const ITEM = /^\s*([-*+]|\d+[.)]) /, FENCE = /^ {0,3}```/, TABLE = /^\s*\|/, HEADING = /^(#{1,6}) (.*)$/;
const BLOCKS = [[FENCE, codeBlock], [HEADING, heading], [TABLE, cardTable], [ITEM, list], [/^/, paragraph]];

function markdown(text) {
  const lines = text.split(/\r?\n/), nodes = [];
  while (lines.length) {
    if (!lines[0].trim()) lines.shift();
    else nodes.push(BLOCKS.find(([pattern]) => pattern.test(lines[0]))[1](lines));
  }
  return nodes;
}

/** Takes the first line, and those after it that match. */
function take(lines, matches) {
  const end = lines.findIndex((line, i) => i > 0 && !matches(line));
  return lines.splice(0, end < 0 ? lines.length : end);
}
function codeBlock(lines) {
  const [, ...code] = take(lines, line => !FENCE.test(line));
  lines.shift(); // the closing fence
  return h("pre", { tabIndex: 0 }, code.join("\n"));
}
function heading(lines) {
  const [, marks, text] = lines.shift().match(HEADING);
  return h(`h${Math.min(6, marks.length + 2)}`, {}, ...inline(text)); // below the panel's own
}
function list(lines) {
  const tag = /^\s*\d/.test(lines[0]) ? "ol" : "ul", items = take(lines, line => ITEM.test(line));
  return h(tag, {}, items.map(line => h("li", {}, inline(line.replace(ITEM, "")))));
}
function cardTable(lines) {
  const rows = take(lines, line => TABLE.test(line)).map(line => line.trim().replace(/^\||\|$/g, "")
    .split(/(?<!\\)\|/).map(cell => cell.replaceAll("\\|", "|").trim()));
  const tableRow = (tag, cells) => h("tr", {}, ...cells.map(cell => h(tag, {}, ...inline(cell))));
  const hasHead = rows.length > 1 && rows[1].every(cell => /^:?-+:?$/.test(cell));
  const head = hasHead && rows[0].some(Boolean) ? h("thead", {}, tableRow("th", rows[0])) : null;
  const body = rows.slice(hasHead ? 2 : 0).map(cells => tableRow("td", cells));
  return scrollBox(`Table: ${rows[hasHead ? 2 : 0]?.[0]}`, h("table", {}, head, h("tbody", {}, ...body)));
}
function paragraph(lines) {
  const isText = line => line.trim() && ![FENCE, HEADING, TABLE, ITEM].some(each => each.test(line));
  return h("p", {}, inline(take(lines, isText).join(" ")));
}
const inline = text => text.split(/(`[^`]+`|\*\*[^*]+\*\*)/).map((part, i) =>
  i % 2 === 0 ? part : part[0] === "`" ? h("code", {}, part.slice(1, -1)) : h("strong", {}, part.slice(2, -2)));

// --------------------------------------------------------------------------- play
async function showPlay(scope, name) {
  title(`Play ${name}`);
  const player = new Player(scope, await findPolicy(scope, name));
  $("view").append(policyTabs(name, "play"), player.element());
}

/** An environment on the server, and what is seen of it. It has no `id` before Start. */
class Player {
  constructor(scope, policy) {
    Object.assign(this, { scope, policy, queue: Promise.resolve(), edits: 0, resets: 0, held: null });
    this.first = policy.action_space.start ?? 0;
    this.bars = new Bars(policy.action_space.type !== "Box");
    // Entries of other observations belong together: a choice is 1 of n.
    if (policy.observation_space.type === "Box")
      this.inputs = new Observation(policy.observation_space, () => this.nudge());
    this.makeControls();
    scope.onLeave(() => this.close());
    scope.listen(window, "pagehide", () => this.close());
    scope.listen(document, "visibilitychange", () => { if (document.hidden) this.pause(); });
    scope.listen(document, "keydown", event => this.key(event, true));
    scope.listen(document, "keyup", event => this.key(event, false));
  }
  makeControls() {
    this.start = button("Start", () => this.id ? this.toggle() : this.open(), "primary");
    this.one = button("Step", () => this.stepOnce());
    this.restart = button("Reset", () => this.reset());
    this.seed = h("input", { type: "number", min: 0, max: 2 ** 31 - 1, placeholder: "any" });
    this.take = checkbox("Take over", () => this.sync());
    this.manual = h("div", { className: "row touch" });
    this.image = h("img", { alt: "" });
    this.facts = { Step: h("dd"), Reward: h("dd"), Return: h("dd"), Value: h("dd") };
    this.prompt = h("pre", { tabIndex: 0 });
    this.promptPanel = panel("What the language model reads", this.prompt);
    this.back = button("Back to the real observation", () => this.endNudge());
    this.change = h("p", { role: "status" });
    this.sync();
  }
  element() {
    const facts = Object.entries(this.facts).map(([name, dd]) => h("div", {}, h("dt", {}, name), dd));
    return h("div", { className: "columns wide" },
      panel(null, row(this.start, this.one, this.restart, h("label", {}, "Seed ", this.seed), this.take.label),
        this.manual, h("div", { className: "stage" }, this.image), h("dl", { className: "facts" }, facts)),
      h("div", {}, panel("What the policy would do", this.bars.element), this.promptPanel,
        this.inputs && panel("Observation",
          hint("Change a number to ask what the policy would do then. Nothing moves."),
          row(this.back, this.change), this.inputs.element)));
  }
  /** Shows what may be pressed now. */
  sync() {
    const { id, isRunning, isStarting } = this, hasEnded = Boolean(this.state?.ended);
    write(this.start, !id ? "Start" : isRunning ? "Pause" : "Resume");
    this.start.disabled = isStarting || (id && hasEnded);
    this.one.disabled = !id || hasEnded || isRunning;
    this.restart.disabled = this.take.box.disabled = !id;
    this.manual.hidden = !id || !this.take.box.checked;
    this.back.hidden = !this.isNudged;
    this.promptPanel.hidden = !this.state?.prompt;
    if (this.inputs) this.inputs.element.disabled = !id;
  }
  /** Asks the play, one request at a time. */
  send(action, body) {
    const path = `v1/play/${encodeURIComponent(this.id)}/${action}`;
    const reply = this.queue.then(() => this.scope.call(path, { method: "POST", body }));
    this.queue = reply.catch(() => {});
    return this.answer(reply);
  }
  /** A reply, or null once it has been said what went wrong. A play that is gone is forgotten. */
  async answer(reply) {
    try {
      await reply;
      fail(null);
      return reply;
    } catch (error) {
      this.isRunning = false;
      if (error.status === 404 || error.code === "play_failed") this.id = null;
      if (!this.scope.left) fail(error, PLAY_ADVICE);
      return null;
    } finally {
      this.sync();
    }
  }
  readSeed() { return this.seed.value === "" ? null : this.seed.valueAsNumber; }
  async open() {
    this.isStarting = true;
    this.sync();
    say("Starting the environment …");
    // Not by the scope: a play that opens after one has left is to be closed.
    const body = { policy: this.policy.policy, seed: this.readSeed() };
    const opened = await this.answer(call("v1/play", { method: "POST", body }));
    this.isStarting = false;
    if (!this.scope.left) say("");
    if (opened) this.begin(opened);
    this.sync();
  }
  begin(opened) {
    this.id = opened.play;
    if (this.scope.left) { this.close(); return; }
    const parts = choices(this.policy.action_space);
    this.names = opened.actions ?? (parts && parts.flatMap(({ low, high }, part) =>
      Array.from({ length: high - low + 1 }, (_, i) => `part ${part}: ${low + i}`)));
    Object.assign(this, { keys: opened.keys ?? {}, fps: opened.fps || 30, lastHeld: null });
    const idle = (opened.actions ?? []).findIndex(name => /^(nothing|no-?op|no push|idle|stay|torque 0)\b/i.test(name));
    this.idle = idle < 0 ? null : idle + this.first;
    this.manual.replaceChildren(...(opened.actions ? this.actionButtons() : this.actionSliders(parts)));
    this.show(opened);
    this.toggle();
  }
  close() {
    this.isRunning = false;
    if (this.id) call(`v1/play/${encodeURIComponent(this.id)}`, { method: "DELETE", keepalive: true })
      .catch(() => {}); // it ends by itself
    this.id = null;
    this.sync();
  }
  pause() {
    this.isRunning = false;
    if (this.state && !this.isNudged) this.showReal();
    this.sync();
  }
  toggle() {
    if (this.isRunning || this.state.ended) { this.pause(); return; }
    this.isRunning = true;
    this.endNudge();
    this.loop();
  }
  stepOnce() {
    if (this.one.disabled) return;
    this.endNudge();
    this.loop();
  }
  /** One step, and more while it runs. Each is asked for while the frame before it is shown. */
  async loop() {
    if (this.isLooping) return;
    this.isLooping = true;
    let due = performance.now();
    do {
      const { resets } = this;
      const state = await this.send("step", { action: this.action() });
      due = Math.max(due + 1000 / this.fps, performance.now());
      await wait(due - performance.now());
      if (resets === this.resets) this.show(state);
    } while (this.isRunning);
    this.isLooping = false;
  }
  async reset() {
    const goesOn = this.isRunning || this.state.ended;
    this.resets++;
    this.pause();
    this.endNudge();
    const state = await this.send("reset", { seed: this.readSeed() });
    this.show(state);
    if (state && goesOn) this.toggle();
  }
  show(state) {
    if (!state || this.scope.left) return;
    this.state = state;
    if (state.ended) this.isRunning = false;
    this.image.src = state.frame;
    this.image.alt = `${this.policy.env} after ${state.step} steps`;
    const { step: Step, reward: Reward, episode_return: Return } = state;
    for (const [name, value] of Object.entries({ Step, Reward, Return })) write(this.facts[name], num(value));
    if (!this.isNudged) this.showReal();
    say(state.ended ? `The episode ended after ${state.step} steps with a return of ` +
      `${num(state.episode_return)}. Press Reset for another one.` : "");
    this.sync();
  }
  showReal() {
    this.inputs?.set(this.state.observation, this.isRunning);
    this.showAnswer(this.state, this.state.next_action);
  }
  showAnswer(answer, action, real = null) {
    write(this.facts.Value, num(answer.value));
    write(this.prompt, answer.prompt ?? "");
    this.bars.show(answer, this.names, isMissing(action) ? null : action - this.first, real);
  }
  /** What to send; null leaves it to the policy. While no key is held, the env idles if it can. */
  action() {
    if (!this.take.box.checked) return null;
    return this.held ?? this.sliders?.map(slider => slider.valueAsNumber) ?? this.idle ?? this.lastHeld;
  }
  hold(action) {
    this.held = action;
    [...this.manual.children].forEach((each, i) => each.classList.toggle("held", i + this.first === action));
    if (action === null) return;
    this.lastHeld = action;
    this.stepOnce(); // while paused, each press is a step
  }
  release(action) { if (this.held === action) this.hold(null); }
  key(event, isDown) {
    const action = this.keys?.[event.key], { target } = event;
    if (action === undefined || this.manual.hidden || event.ctrlKey || event.metaKey || event.altKey) return;
    if (target.closest("input:not([type=checkbox]), textarea, select")) return;
    event.preventDefault(); // arrows scroll
    if (isDown) this.hold(action);
    else this.release(action);
  }
  actionButtons() {
    return this.names.slice(0, MAX_BARS).map((name, i) => {
      const action = this.first + i, keys = Object.keys(this.keys).filter(key => this.keys[key] === action);
      const each = button(name);
      if (keys.length) each.append(h("kbd", {}, keys.join(" ").replaceAll("Arrow", "")));
      each.addEventListener("pointerdown", () => this.hold(action));
      each.addEventListener("keydown", ({ key }) => { if (key === " " || key === "Enter") this.hold(action); });
      for (const end of ["pointerup", "pointerleave", "pointercancel", "keyup", "blur"])
        each.addEventListener(end, () => this.release(action));
      return each;
    });
  }
  /** One for each number of an action, or for each choice in `parts`. */
  actionSliders(parts) {
    const { low, high } = this.policy.action_space;
    const ranges = parts ?? low.map((each, i) => ({ low: each ?? -1, high: high[i] ?? 1 }));
    this.sliders = ranges.map(each => h("input", { type: "range", step: parts ? 1 : "any", min: each.low,
      max: each.high, value: 0 }));
    return this.sliders.map((slider, i) => h("label", { className: "grow" }, `Part ${i} of the action`, slider));
  }
  /** Asks what the policy would do at the observation that was typed. */
  async nudge() {
    this.isNudged = true;
    this.pause();
    const mine = ++this.edits;
    await wait(NUDGE_PAUSE_MS);
    if (mine !== this.edits) return;
    const observation = this.inputs.read();
    if (!observation) { write(this.change, "These are not the numbers of an observation."); return; }
    const answer = await this.send("ask", { observation }), { state } = this;
    if (!answer || mine !== this.edits) return;
    this.showAnswer(answer, answer.action, state);
    const text = action => this.names && Number.isInteger(action) ? this.names[action - this.first]
      : [action].flat().map(num).join(", ");
    const from = text(state.next_action), to = text(answer.action);
    const value = isMissing(answer.value) ? "" : ` Value: ${num(state.value)} → ${num(answer.value)}.`;
    write(this.change, (from === to ? `The action stays ${from}.` : `Action: ${from} → ${to}.`) + value);
  }
  endNudge() {
    this.edits++; // an answer that is on its way comes too late
    if (this.isNudged) write(this.change, "");
    this.isNudged = false;
    if (this.state) this.showReal();
    this.sync();
  }
}

/** The least and the largest number of each choice in an action; null if it is made of other numbers. */
function choices({ type, n, start, nvec, shape }) {
  if (type === "Discrete") return [{ low: start, high: start + n - 1 }];
  if (type === "MultiDiscrete") return nvec.map((each, i) => ({ low: start[i], high: start[i] + each - 1 }));
  if (type !== "MultiBinary") return null;
  return Array.from({ length: shape.reduce((a, b) => a * b, 1) }, () => ({ low: 0, high: 1 }));
}

/** Bars of the actions' probabilities, or of mean ± standard deviation of an action's parts. */
class Bars {
  constructor(isDiscrete) {
    Object.assign(this, { isDiscrete, rows: [], limit: 1 }); // limit: where the axis of means ends
    this.element = h("div", { className: "bars" }, hint("Press Start."));
  }
  /** `real` is the answer at the real observation, while another one is asked about. */
  show(answer, names, chosen, real) {
    const spans = this.spans(answer), before = real && this.spans(real);
    const order = spans.map((_, i) => i), count = Math.min(MAX_BARS, order.length);
    if (order.length > count) order.sort((a, b) => spans[b].at - spans[a].at);
    if (this.rows.length !== count) this.build(count);
    this.rows.forEach(({ name, bar, mark, value }, i) => {
      const { left, right, text } = spans[order[i]];
      write(name, names?.[order[i]] ?? `part ${order[i]}`);
      name.classList.toggle("chosen", order[i] === chosen);
      Object.assign(bar.style, { left: `${100 * left}%`, width: `${100 * (right - left)}%` });
      mark.hidden = !before?.[order[i]]; // after its end, an episode has no next action
      if (!mark.hidden) mark.style.left = `${100 * before[order[i]].at}%`;
      write(value, text);
    });
  }
  /** Where each bar begins and ends, 0 to 1, and what it says. */
  spans({ probabilities, mean, std }) {
    if (this.isDiscrete) return (probabilities ?? []).map(p => ({ left: 0, right: p, at: p, text: percent(p) }));
    const place = value => 0.5 + value / this.limit / 2;
    this.limit = Math.max(this.limit, ...(mean ?? []).map((each, i) => Math.abs(each) + std[i]));
    return (mean ?? []).map((each, i) => ({ left: place(each - std[i]), right: place(each + std[i]),
      at: place(each), text: `${num(each)} ± ${num(std[i])}` }));
  }
  build(count) {
    const span = className => h("span", { className });
    this.rows = Array.from({ length: count }, () => ({ name: span("name"), value: span("value"),
      bar: h("i", { className: this.isDiscrete ? "" : "spread" }), mark: h("i", { className: "mark" }) }));
    this.element.replaceChildren(...this.rows.flatMap(({ name, value, bar, mark }) =>
      [name, h("span", { className: "track", "aria-hidden": "true" }, bar, mark), value]));
  }
}

/** Inputs for an observation: a number and a slider for each entry, or one text if there are many. */
class Observation {
  constructor({ low, high }, onedit) {
    Object.assign(this, { onedit, values: low.map(() => 0), text: null, fields: [] });
    if (low.length > MAX_INPUTS)
      this.text = h("textarea", { rows: 6, "aria-label": "Observation as a JSON list", oninput: onedit });
    else this.fields = low.map((_, i) => this.field(i, low[i] ?? -Infinity, high[i] ?? Infinity));
    const parts = this.fields.map(({ number, slider }, i) =>
      h("div", {}, h("label", { htmlFor: number.id }, String(i)), number, slider));
    this.element = h("fieldset", { className: "numbers", "aria-label": "Observation" }, this.text, parts);
    this.set(this.values);
  }
  field(i, low, high) {
    const edit = (from, to) => {
      this.values[i] = from.valueAsNumber;
      to.value = +from.valueAsNumber.toPrecision(5);
      number.className = "edited";
      this.onedit();
    };
    const number = h("input", { type: "number", step: "any", id: `entry-${i}`, oninput: () => edit(number, slider) });
    const slider = h("input", { type: "range", step: "any", "aria-label": `Entry ${i}, slider`,
      min: low >= -100 ? low : -3, max: high <= 100 ? high : 3, oninput: () => edit(slider, number) });
    return { number, slider };
  }
  /** A long text is not written while the env moves: it would slow the frames down. */
  set(values, isMoving = false) {
    this.values = [...values];
    if (this.text && !isMoving) this.text.value = `[${values.map(value => +value.toPrecision(6)).join(", ")}]`;
    this.fields.forEach(({ number, slider }, i) => {
      if (values[i] > slider.max) slider.max = 2 * values[i];
      if (values[i] < slider.min) slider.min = 2 * values[i];
      number.value = slider.value = +values[i].toPrecision(5);
      number.className = "";
    });
  }
  /** The numbers in one list, or null if there is something else. */
  read() {
    try {
      const values = this.text ? JSON.parse(this.text.value).flat(Infinity) : this.values;
      return values.length === this.values.length && values.every(Number.isFinite) ? values : null;
    } catch { return null; }
  }
}

/** Input for an observation that is not a box of numbers: JSON. */
class JsonObservation {
  constructor(onedit) {
    this.text = h("textarea", { rows: 6, "aria-label": "Observation as JSON", oninput: onedit });
    this.element = h("fieldset", { "aria-label": "Observation" }, this.text);
  }
  set(value) { this.text.value = JSON.stringify(value, null, 1); }
  /** What was typed; undefined if it is not JSON. */
  read() {
    try { return JSON.parse(this.text.value); } catch { return undefined; }
  }
}

// --------------------------------------------------------------------------- try it
async function showTry(scope, name) {
  title(`Try ${name}`);
  const policy = await findPolicy(scope, name), { shape, type } = policy.observation_space;
  const isBox = type === "Box";
  const path = `v1/policies/${encodeURIComponent(name)}/act`;
  const curl = h("pre", { tabIndex: 0, "aria-label": "The request as a curl command" });
  const answer = h("pre", { tabIndex: 0, role: "status" }, "No request so far.");
  const observation = () => isBox ? nest(inputs.read() ?? [], shape) : inputs.read();
  const body = () => ({ observation: observation(), deterministic: deterministic.box.checked });
  const update = () => write(curl, curlLine(path, body()));
  const inputs = isBox ? new Observation(policy.observation_space, update) : new JsonObservation(update);
  const deterministic = checkbox("Deterministic: the most likely action", update);
  deterministic.box.checked = true;
  const form = h("form", { onsubmit: event => { event.preventDefault(); act(); } }, inputs.element,
    row(h("button", { className: "primary" }, "Act"), deterministic.label));
  const act = async () => {
    const started = performance.now();
    try {
      if (isBox && !inputs.read())
        throw new ApiError(422, "", `Expected ${shape.join(" × ") || "1"} finite numbers`);
      if (inputs.read() === undefined) throw new ApiError(422, "", "Expected JSON");
      const reply = await scope.call(path, { method: "POST", body: body() });
      write(answer, `${JSON.stringify(reply, null, 1)}\n${Math.round(performance.now() - started)} ms`);
      fail(null);
    } catch (error) { fail(error); }
  };
  $("view").append(policyTabs(name, "try"), h("div", { className: "columns" },
    panel(`Observation of ${policy.env}`, form),
    h("div", {}, panel("Answer", answer), panel("The same with curl", curl, button("Copy", () => copy(curl))))));
  const { paths } = await scope.call("openapi.json").catch(() => ({})); // it has a recorded observation
  const request = paths?.[`/v1/policies/${baseName(name)}/act`]?.post.requestBody.content["application/json"];
  const example = request?.example.observation;
  if (request) inputs.set(isBox ? [example].flat(Infinity) : example);
  update();
}

/** A flat list in a space's shape. */
function nest(values, [length, ...rest]) {
  if (length === undefined) return values[0];
  const size = values.length / length;
  return Array.from({ length }, (_, i) => nest(values.slice(i * size, (i + 1) * size), rest));
}
function curlLine(path, body) {
  const quoted = text => `'${text.replaceAll("'", "'\\''")}'`;
  const lines = [`curl -s ${quoted(new URL(path, document.baseURI).href)}`,
    "-H 'Content-Type: application/json'", `-d ${quoted(JSON.stringify(body))}`];
  if (token) lines.splice(1, 0, '-H "Authorization: Bearer $TOKEN"');
  return lines.join(" \\\n  ");
}

/** Browsers offer the clipboard to https and localhost only; elsewhere the text is just selected. */
async function copy(element) {
  getSelection().selectAllChildren(element);
  const isCopied = await navigator.clipboard?.writeText(element.textContent).then(() => true, () => false);
  say(isCopied ? "Copied." : "Selected: copy it with Ctrl+C.");
}

// --------------------------------------------------------------------------- the start
const systemTheme = matchMedia("(prefers-color-scheme: dark)");
const theme = () => document.documentElement.dataset.theme ?? (systemTheme.matches ? "dark" : "light");

/** Without an argument: the theme of the system, unless another was chosen. */
function setTheme(chosen) {
  if (chosen) document.documentElement.dataset.theme = chosen;
  $("theme").ariaLabel = $("theme").title = `${theme() === "dark" ? "Light" : "Dark"} theme`;
  document.dispatchEvent(new Event("themechange"));
}
$("theme").addEventListener("click", () => {
  setTheme(theme() === "dark" ? "light" : "dark");
  remember("localStorage", "rl-service-theme", theme());
});
systemTheme.addEventListener("change", () => setTheme());
$("token-form").addEventListener("submit", useToken);
$("skip").addEventListener("click", event => { event.preventDefault(); $("title").focus(); }); // keeps the hash
addEventListener("hashchange", () => { route(); $("title").focus(); });
setTheme(remember("localStorage", "rl-service-theme"));
route();
