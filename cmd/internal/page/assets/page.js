// The page of a mount. It requests /page.json every few seconds and shows it. Everything that comes
// from the daemon is set as text, never as markup.
"use strict";

const interval = 5000; // ms between two requests
const silence = 10000; // ms without an answer after which the state is old
const timeout = 30000; // ms for a request
const kept = 30 * 60 * 1000; // ms that the charts show
const gap = 15000; // ms between two points that are not connected

let state = null; // the last answer
let points = []; // the latest last
let answered = 0; // when the last answer came, by performance.now
let answeredAt = null; // likewise, by the clock
let problem = ""; // why there was no answer to the last request
let restarted = false; // the daemon has been started again
let failures = 0; // requests in a row without an answer
let request = null; // the AbortController of the request in flight
let timer = 0;
let frames = 0; // the frame in which the charts are drawn
let shown = null; // the time that the charts show, in ms; null: the latest

// Text.

const $ = id => document.getElementById(id);
const count = n => Math.round(n).toLocaleString("en");

// size formats a number of bytes as `milkweed status` does.
function size(n) {
	n = Math.max(0, Math.round(n));
	if (n < 10) return `${n} B`;
	const e = Math.min(6, Math.floor(Math.log2(n) / 10));
	const v = Math.floor(n / 1024 ** e * 10 + 0.5) / 10;
	return `${v < 10 ? v.toFixed(1) : v.toFixed(0)} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"][e]}`;
}

const percent = x => x === null ? "–" : `${(100 * x).toFixed(0)}%`;
const share = (n, of) => of > 0 ? n / of : null;
const rate = n => `${size(n)}/s`;
const few = n => n >= 10 || n === 0 ? count(n) : n.toFixed(n < 1 ? 2 : 1);
const plural = (n, one, many) => `${count(n)} ${n === 1 ? one : many}`;
const clock = ms => new Date(ms).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

const day = ms => `${new Date(ms).toLocaleDateString("sv")} ${clock(ms)}`;

function duration(s) {
	if (s < 10) return `${s.toFixed(s < 1 ? 2 : 1)} s`;
	s = Math.round(s);
	if (s < 60) return `${s} s`;
	if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
	if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor(s % 3600 / 60)} min`;
	return `${Math.floor(s / 86400)} d ${Math.floor(s % 86400 / 3600)} h`;
}

// Elements.

function set(e, attributes, children) {
	for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
	e.append(...children);
	return e;
}
const el = (tag, attributes = {}, ...children) => set(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) => set(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

// cells returns a row of a table. A cell is text, an element, or [cell, class].
function row(first, ...others) {
	const cell = (tag, c) => {
		const [content, cls] = Array.isArray(c) ? c : [c, ""];
		const e = el(tag, cls ? { class: cls } : {}, content);
		if (tag === "th") e.scope = "row";
		return e;
	};
	return el("tr", {}, cell("th", first), ...others.map(c => cell("td", c)));
}
const body = (id, rows) => $(id).tBodies[0].replaceChildren(...rows);

// Levels and what stands for them: a colour, and a pattern for what a colour alone may not tell apart.

const look = new Map();
const patterned = { fill: "dots", source: "stripes", peers: "rungs" };

function levelLook(name) {
	if (!look.has(name)) {
		const i = state.tiers.findIndex(t => t.name === name);
		look.set(name, { cls: i >= 0 ? `l${i % 4 + 1}` : `l${name}`, pattern: i >= 0 ? "" : patterned[name] || "" });
	}
	return look.get(name);
}

// paint returns the attributes that fill a shape of a series.
function paint(s) {
	if (!s.pattern) return { class: `ink area ${s.cls}` };
	const id = `${s.pattern}-${s.cls}`;
	if (!$(id)) {
		const marks = {
			dots: [svg("circle", { cx: 3, cy: 3, r: 1.4, class: "paper" })],
			stripes: [svg("path", { d: "M-2 2L2 -2M0 6L6 0M4 8L8 4", class: "stripe" })],
			rungs: [svg("path", { d: "M0 3H6", class: "stripe" })],
			half: [svg("path", { d: "M3 0V6", class: "stripe" })],
		}[s.pattern];
		$("patterns").append(svg("pattern", { id, width: 6, height: 6, patternUnits: "userSpaceOnUse", class: s.cls },
			svg("rect", { width: 6, height: 6, class: "ink" }), ...marks));
	}
	return { class: `area ${s.cls}`, fill: `url(#${id})` };
}

function swatch(s, line) {
	const mark = line
		? svg("path", { d: "M0 6H16", class: `series ${s.cls} ${s.dash ? "dash" : ""}` })
		: svg("rect", { width: 16, height: 12, ...paint(s) });
	return svg("svg", { class: "swatch", viewBox: "0 0 16 12", "aria-hidden": "true" }, mark);
}

// name returns the name of a series with its swatch.
const named = (s, line) => el("span", {}, swatch(s, line), s.name);

// bar returns a bar that is filled to a share.
function bar(x, s) {
	const width = 100 * Math.min(1, Math.max(0, x || 0));
	return svg("svg", { class: "bar", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
		svg("rect", { width: 100, height: 10, class: "track" }),
		svg("rect", { width, height: 10, class: `ink ${s.cls}` }));
}

// Charts.

// frame makes the parts of a chart once, so that an update keeps the focus and what is open.
function frame(id) {
	const parent = $(id);
	if (!parent.firstChild) {
		const title = parent.closest("section").querySelector("h2").textContent;
		parent.append(svg("svg", { role: "img" }),
			el("div", { class: "scroll" }, el("table", { id: `${id}-legend` },
				el("caption", { class: "unseen" }, `${title}: at the time shown, and over the last half hour`), el("thead"), el("tbody"))),
			el("details", {}, el("summary", {}, `${title}, minute by minute`),
				el("div", { class: "scroll" }, el("table", { id: `${id}-minutes` },
					el("caption", {}, `${title}: means of each minute, the latest first`), el("thead"), el("tbody")))));
		parent.querySelector("details").addEventListener("toggle", draw);
		const pick = e => { point(parent.querySelector("svg"), e); };
		parent.firstChild.addEventListener("pointermove", pick);
		parent.firstChild.addEventListener("pointerdown", pick);
		parent.firstChild.addEventListener("pointerleave", () => { show(null); });
	}
	return parent;
}

const mean = values => {
	const known = values.filter(v => v !== null);
	return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null;
};
const head = (id, ...names) => $(id).tHead.replaceChildren(el("tr", {},
	...names.map((n, i) => el("th", i ? { scope: "col", class: "n" } : { scope: "col" }, n))));

// span returns the times at the edges of the charts.
function span() {
	const end = points.length ? points.at(-1).at : state.now;
	const begin = points.length ? points[0].at : end;
	return [Math.min(begin, end - 2 * 60 * 1000), end];
}

const left = 66, bottom = 20, top_ = 8; // px around the plot

// chart draws series: each has a name, a look, and a value of a point, or null if there is none.
function chart(id, { series, stacked, format, max, label }) {
	const parent = frame(id), picture = parent.firstChild;
	const width = Math.max(240, picture.clientWidth || 600), height = 150;
	const [begin, end] = span();
	const values = series.map(s => points.map(s.value));
	const sums = points.map((_, i) => values.reduce((sum, v) => sum + (v[i] || 0), 0));
	const highest = max || nice(Math.max(...(stacked ? sums : values.flat()), 0), format);
	const x = t => left + (width - left - 6) * (t - begin) / (end - begin);
	const y = v => top_ + (height - top_ - bottom) * (1 - v / highest);
	const parts = [];
	for (const f of [0, 0.5, 1]) {
		parts.push(svg("path", { class: "grid", d: `M${left} ${y(f * highest)}H${width}` }),
			svg("text", { x: left - 8, y: y(f * highest) + 4, "text-anchor": "end" }, format(f * highest)));
	}
	parts.push(svg("text", { x: left, y: height - 4 }, clock(begin).slice(0, 5)),
		svg("text", { x: width - 4, y: height - 4, "text-anchor": "end" }, clock(end).slice(0, 5)));
	const floor = points.map(() => 0);
	series.forEach((s, k) => {
		for (const run of runs(values[k])) {
			const line = run.map(i => `${x(points[i].at).toFixed(1)} ${y((stacked ? floor[i] : 0) + values[k][i]).toFixed(1)}`);
			if (!stacked) {
				const d = line.length > 1 ? `M${line.join("L")}` : `M${line[0]}h2`;
				parts.push(svg("path", { class: `series ${s.cls} ${s.dash ? "dash" : ""}`, d }));
				continue;
			}
			if (run.every(i => values[k][i] === 0)) continue;
			const back = run.toReversed().map(i => `${x(points[i].at).toFixed(1)} ${y(floor[i]).toFixed(1)}`);
			parts.push(svg("path", { ...paint(s), d: `M${line.concat(back).join("L")}Z` }));
		}
		values[k].forEach((v, i) => { floor[i] += v || 0; });
	});
	const at = index();
	if (points.length && shown !== null) parts.push(svg("path", { class: "now", d: `M${x(points[at].at).toFixed(1)} ${top_}V${height - bottom}` }));
	picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
	picture.replaceChildren(...parts);
	picture.setAttribute("aria-label", points.length
		? `${label}, ${clock(begin)} to ${clock(end)}. At ${clock(points[at].at)}: ${series.map((s, k) => `${s.name} ${text(values[k][at], format)}`).join(", ")}.`
		: `${label}: no data yet.`);

	head(`${id}-legend`, series[0].kind, shown === null ? "Now" : clock(points[at].at), "Mean", "Most");
	body(`${id}-legend`, series.map((s, k) => row(named(s, !stacked), ...[values[k][at], mean(values[k]), most(values[k])].map(v => [text(v, format), "n"]))));
	if (parent.querySelector("details").open) minutes(id, series, values, format);
}

const text = (v, format) => v === null || v === undefined ? "–" : format(v);
const most = values => values.reduce((a, b) => b === null ? a : Math.max(a === null ? b : a, b), null);

// minutes fills the table that has the numbers of a chart.
function minutes(id, series, values, format) {
	const rows = new Map();
	points.forEach((p, i) => {
		const minute = Math.floor(p.at / 60000) * 60000;
		rows.set(minute, (rows.get(minute) || []).concat(i));
	});
	head(`${id}-minutes`, "Minute", ...series.map(s => s.name));
	body(`${id}-minutes`, [...rows].reverse().map(([minute, at]) =>
		row(clock(minute).slice(0, 5), ...values.map(v => [text(mean(at.map(i => v[i])), format), "n"]))));
}

// runs returns the indexes of the points that are connected by a line.
function runs(values) {
	const all = [];
	values.forEach((v, i) => {
		if (v === null) return;
		const run = all.at(-1);
		if (run && run.at(-1) === i - 1 && points[i].at - points[i - 1].at <= gap) run.push(i);
		else all.push([i]);
	});
	return all;
}

// nice returns a round number that is not below n.
function nice(n, format) {
	if (n <= 0) return format === rate ? 1024 * 1024 : 1;
	const unit = format === rate ? 1024 ** Math.floor(Math.log(Math.max(n, 1)) / Math.log(1024)) : 1;
	const e = 10 ** Math.floor(Math.log10(n / unit));
	return unit * e * [1, 2, 5, 10].find(f => f * e * unit >= n);
}

// index returns the index of the point that is shown.
function index() {
	if (shown === null) return points.length - 1;
	let best = 0;
	points.forEach((p, i) => { if (Math.abs(p.at - shown) < Math.abs(points[best].at - shown)) best = i; });
	return best;
}

// show shows the point at a time, or the latest.
function show(time) {
	if (time === shown) return;
	shown = time;
	if (!frames) frames = requestAnimationFrame(() => { frames = 0; draw(); }); // a pointer moves more often
}

// point shows the point under the pointer.
function point(picture, e) {
	const box = picture.getBoundingClientRect();
	const [begin, end] = span();
	const f = (e.clientX - box.left - left) / (box.width - left - 6);
	if (points.length && f >= 0 && f <= 1) show(begin + f * (end - begin));
}

// The parts of the page.

const value = (p, name, field) => p.level.get(name)?.[field] || 0;

function drawState() {
	const s = state;
	document.title = `${s.mount_point} – Milkweed on ${s.host}`;
	$("mount").textContent = `${s.mount_point} on ${s.host}`;
	const word = s.draining ? "draining" : s.ready ? "ready" : "not ready";
	const facts = [`mode ${s.mode}`, `up ${duration(s.uptime_seconds)}`, `version ${s.milkweed}`, `dataset ${s.dataset_id}`];
	if (s.generation) facts.push(`generation ${s.generation}`);
	$("facts").replaceChildren(el("strong", { id: "word" }, word), ` · ${facts.join(" · ")}`);
}

function drawProblems() {
	const s = state, all = [];
	if (s.draining) all.push(`The mount was unmounted and is in use in ${plural(s.elsewhere, "other mount namespace", "other mount namespaces")}. It is read from the source only.`);
	for (const t of s.tiers) {
		if (t.health === "down" || t.health === "degraded" || t.health === "full") all.push(`Tier ${t.name} is ${t.health}${t.reason ? `: ${t.reason}` : ""}.`);
	}
	if (s.peers && s.peers.up < s.peers.total - 1) all.push(`${s.peers.up} of ${plural(s.peers.total - 1, "other node is", "other nodes are")} up.`);
	if (s.stuck_requests) all.push(`${plural(s.stuck_requests, "request has", "requests have")} waited for more than a minute. The log has their stacks.`);
	if (s.crashes) all.push(`The daemon was started again after ${plural(s.crashes, "crash", "crashes")}. The log has the reason.`);
	if (s.panics) all.push(`${plural(s.panics, "panic", "panics")} in the daemon: see the log.`);
	if (s.source.errors) all.push(`${plural(s.source.errors, "operation", "operations")} on the source failed since the start.`);
	if ($("problems").textContent !== all.join("")) $("problems").replaceChildren(...all.map(p => el("li", {}, p)));
	$("attention").hidden = all.length === 0;
}

function drawNumbers() {
	const s = state;
	const at = index(), recent = points.slice(Math.max(0, at - 11), at + 1);
	const sum = f => recent.reduce((n, p) => n + f(p), 0);
	const opens = s.levels.reduce((n, l) => n + l.opens, 0);
	const local = s.levels.reduce((n, l) => n + (l.tier ? l.opens : 0), 0);
	const bytes = at < 0 ? 0 : points[at].levels.reduce((n, l) => n + l.readers + l.passthrough, 0);
	const waiting = at < 0 ? 0 : s.causes.reduce((n, c) => n + (points[at].waits[c] || 0), 0);
	const number = (id, name, main, more) => el("div", {}, el("dt", {}, name), el("dd", { id }, main), el("dd", { id: `${id}-more` }, more));
	$("numbers").replaceChildren(
		number("hit", "Opens that a tier served", percent(share(sum(p => p.local_opens), sum(p => p.opens))),
			`in the last minute; ${percent(share(local, opens))} of ${count(opens)} since the start`),
		number("placed", "Files with a copy", percent(share(s.copied_files, s.known_files)),
			s.complete ? `all ${count(s.known_files)} files, ${size(s.known_bytes)}: another epoch reads no content from the source`
				: `${count(s.copied_files)} of ${count(s.known_files)} ${s.names_known ? "files" : "known files"}, ${size(s.known_bytes)}`),
		number("bytes", "Bytes read by jobs", rate(bytes), `${plural(s.open_handles, "file is", "files are")} open`),
		number("waiting", "Readers that wait", few(waiting), `on average; ${count(s.copies.in_flight)} copies in flight`));
}

function drawTiers() {
	body("tiers", state.tiers.map(t => {
		const l = { name: t.name, ...levelLook(t.name) };
		const used = el("span", {}, `${size(t.used_bytes)} of ${size(t.quota_bytes)} (${percent(share(t.used_bytes, t.quota_bytes))})`, bar(share(t.used_bytes, t.quota_bytes), l));
		return row(named(l, true), used, [count(t.files), "n"],
			[t.reason ? `${t.health}: ${t.reason}` : t.health, t.health === "healthy" || t.health === "scanning" ? "wrap" : "wrap bad"]);
	}));
	chart("filling", {
		label: "Used share of the quota of each tier", format: percent, max: 1,
		series: state.tiers.map((t, i) => ({
			kind: "Tier", name: t.name, ...levelLook(t.name), dash: i % 2 === 1,
			value: p => share(value(p, t.name, "used_bytes"), value(p, t.name, "quota_bytes")),
		})),
	});
}

function drawThroughput() {
	const series = [];
	for (const l of state.levels) {
		series.push({ kind: "Level", name: l.name, ...levelLook(l.name), value: p => value(p, l.name, "readers") });
		if (l.passthrough > 0) {
			series.push({ kind: "Level", name: `${l.name}, passthrough`, cls: levelLook(l.name).cls, pattern: "half", value: p => value(p, l.name, "passthrough") });
		}
	}
	chart("throughput", { label: "Bytes read per second, by level", format: rate, stacked: true, series });
}

function drawHits() {
	chart("hits", {
		label: "Hit ratio", format: percent, max: 1,
		series: [
			{ kind: "Share", name: "opens that a tier served", cls: "l1", value: p => share(p.local_opens, p.opens) },
			{ kind: "Share", name: "known files with a copy", cls: "l2", dash: true, value: p => share(p.placed_files, p.known_files) },
		],
	});
}

const causes = {
	latency: ["latency of the source", "lsource", "stripes"], bandwidth: ["bandwidth of the source", "l4", ""],
	fill: ["copies in flight", "lfill", "dots"], tier: ["tiers", "l1", ""], peers: ["peers", "lpeers", "rungs"],
};

function drawWaits() {
	chart("waits", {
		label: "Readers that wait, by cause", format: few, stacked: true,
		series: state.causes.filter(c => c !== "peers" || state.peers).map(c => {
			const [name, cls, pattern] = causes[c] || [c, "l3", ""];
			return { kind: "Cause", name, cls, pattern, value: p => p.waits[c] || 0 };
		}),
	});
	const table = $("waits-legend");
	table.tHead.rows[0].append(el("th", { scope: "col", class: "n" }, "Waited in all"));
	state.causes.filter(c => c !== "peers" || state.peers).forEach((c, i) => {
		table.tBodies[0].rows[i].append(el("td", { class: "n" }, duration(state.waits[c] || 0)));
	});
}

function drawEpochs() {
	const all = state.epochs;
	$("no-epochs").hidden = all.length > 0;
	$("epochs-body").hidden = all.length === 0;
	const levels = state.levels.map(l => l.name).filter(l => all.some(e => e.bytes[l] > 0));
	const name = e => (e.number ? count(e.number) : "mixed") + (e.ended ? "" : ", now");
	const longest = Math.max(...all.map(e => e.seconds), 0.001);
	const bars = all.map(e => {
		const total = levels.reduce((n, l) => n + (e.bytes[l] || 0), 0) || 1;
		const parts = [];
		let x = 0;
		for (const l of levels) {
			const width = 600 * Math.max(e.seconds / longest, 0.01) * (e.bytes[l] || 0) / total;
			if (width > 0) parts.push(svg("rect", { x, width, height: 18, ...paint({ ...levelLook(l) }) }));
			x += width;
		}
		return el("div", { class: "epoch" }, el("span", {}, name(e)),
			svg("svg", { viewBox: "0 0 600 18", preserveAspectRatio: "none" }, ...parts), el("span", { class: "n" }, duration(e.seconds)));
	});
	$("epoch-bars").replaceChildren(
		el("p", { class: "note" }, "The length of a bar is the duration; its parts are the bytes that jobs read from each level. Of files opened in passthrough, whose reads the daemon does not see, their sizes count."),
		el("div", { "aria-hidden": "true" }, ...bars),
		el("ul", { class: "legend" }, ...levels.map(l => el("li", {}, named({ name: l, ...levelLook(l) })))));
	head("epochs", "Epoch", "Began", "Took", "Files", "Hit ratio", "Readers waited", ...levels);
	body("epochs", all.map(e => row(name(e), ...[clock(e.began), duration(e.seconds), count(e.files), percent(share(e.local_opens, e.opens)),
		duration(e.waited_seconds), ...levels.map(l => size(e.bytes[l] || 0))].map(c => [c, "n"]))));
}

function drawCopies() {
	const c = state.copies;
	chart("copies", {
		label: "Copies", format: few,
		series: [
			{ kind: "What", name: "copies in flight", cls: "lfill", value: p => p.filling },
			{ kind: "What", name: "files queued", cls: "l2", dash: true, value: p => p.queued },
			{ kind: "What", name: "blocks in the background", cls: "l3", value: p => p.background },
		],
	});
	$("copies-note").textContent = `${count(c.placed)} copies made, of them ${count(c.prefetched)} prefetched; ${count(c.skipped)} files skipped, because no tier had room; ${count(c.failed)} failed. ` +
		`At most ${plural(c.limit, "block", "blocks")} in flight in the background; requests take ${c.slowdown.toFixed(1)} × the time of an idle source.`;
}

const kinds = ["open", "read", "stat", "readdir", "readlink", "xattr", "acl", "holes"];

function drawSource() {
	const s = state.source;
	const seen = kinds.filter(k => s.operations[k]);
	chart("operations", {
		label: "Operations at the source per second, by kind", format: few,
		series: (seen.length ? seen : kinds.slice(0, 3)).map((k, i) => ({
			kind: "Operations per second", name: k, cls: ["l1", "lsource", "l2", "l3", "l4", "lpeers", "lfill"][i % 7], dash: i % 2 === 1, value: p => p.operations[k] || 0,
		})),
	});
	const total = Object.values(s.operations).reduce((a, b) => a + b, 0);
	$("source-note").textContent = `Since the start: ${size(s.bytes_read)} read, ${plural(total, "operation", "operations")}, ${plural(s.errors, "error", "errors")}.`;
}

function drawPeers() {
	const p = state.peers;
	$("peers-section").hidden = !p;
	if (!p) return;
	$("peers-note").textContent = `This node is ${p.self || "not in the roster"}. ${count(p.up)} of ${plural(p.total - 1, "other node is", "other nodes are")} up.` +
		(p.nodes.length < p.total - 1 ? " A roster of this size is not listed here; `milkweed peers` lists it." : "");
	const most = Math.max(1, ...p.nodes.flatMap(n => [n.read_bytes, n.served_bytes]));
	const cell = (n, cls) => el("span", {}, size(n), bar(n / most, { cls }));
	body("peers", p.nodes.map(n => row(n.name, [n.up ? "up" : "down", n.up ? "" : "bad"], cell(n.read_bytes, "lpeers"), cell(n.served_bytes, "l2"), [count(n.failovers), n.failovers ? "n bad" : "n"])));
}

function drawWarnings() {
	const all = state.warnings || [];
	$("no-warnings").hidden = all.length > 0;
	$("warnings-body").hidden = all.length === 0;
	body("warnings", all.toReversed().map(w => row(day(Date.parse(w.time)),
		[w.level, w.level === "ERROR" ? "bad" : ""], [w.message, "wrap"], w.tier || "–", [count(w.count), "n"])));
}

function drawCursor() {
	const input = $("cursor");
	input.max = Math.max(0, points.length - 1);
	input.value = index() < 0 ? 0 : index();
	const words = shown === null || !points.length ? "now" : clock(points[index()].at);
	$("cursor-time").textContent = words;
	input.setAttribute("aria-valuetext", words);
}

// draw shows the state and the points.
function draw() {
	if (!state) return;
	$("main").hidden = false;
	for (const part of [drawState, drawProblems, drawNumbers, drawCursor, drawTiers, drawThroughput, drawHits, drawWaits, drawEpochs, drawCopies, drawSource, drawPeers, drawWarnings]) part();
	reachable();
}

// reachable lets the keyboard reach the tables that can be scrolled.
function reachable() {
	for (const box of document.querySelectorAll(".scroll")) {
		if (box.scrollWidth > box.clientWidth) set(box, { tabindex: 0, role: "region", "aria-label": box.querySelector("caption").textContent }, []);
		else for (const a of ["tabindex", "role", "aria-label"]) box.removeAttribute(a);
	}
}

// live says how old the state is. It changes the text only when that changes, because a screen reader
// reads each change.
function live() {
	const age = performance.now() - answered;
	const old = answeredAt !== null && age > silence && !paused();
	let words = "Waiting for the daemon.";
	if (problem) words = problem;
	else if (old) words = "The daemon does not answer.";
	else if (paused()) words = "Updates are paused.";
	else if (answeredAt !== null) words = restarted ? "The daemon was started again. Updated every 5 s." : "Updated every 5 s.";
	if (answeredAt !== null && (problem || old || paused())) words += ` The page shows the state of ${clock(answeredAt)}.`;
	if ($("live").textContent !== words) $("live").textContent = words;
	document.body.classList.toggle("stale", Boolean(problem) || old);
	$("age").textContent = answeredAt === null || age < 2 * interval ? "" : `That was ${duration(Math.floor(age / 1000))} ago.`;
}

const paused = () => $("pause").getAttribute("aria-pressed") === "true";

// Requests.

// accept takes over an answer.
function accept(s) {
	if (state && s.since !== state.since) {
		points = [];
		look.clear();
		restarted = true;
		state = s;
		return false; // the points before are missing
	}
	state = s;
	for (const p of s.points) {
		p.at = Date.parse(p.time);
		p.level = new Map(p.levels.map(l => [l.name, l]));
		if (!points.length || p.at > points.at(-1).at) points.push(p);
	}
	while (points.length && points[0].at < points.at(-1).at - kept) points.shift();
	return true;
}

async function ask(after) {
	const response = await fetch(after ? `/page.json?after=${after}` : "/page.json", { signal: request.signal, cache: "no-store", credentials: "omit" });
	if (!response.ok) throw new Error((await response.text()).trim());
	return response.json();
}

// update requests the state, one request at a time, and again after a while.
async function update() {
	if (request) return;
	clearTimeout(timer);
	request = new AbortController();
	const limit = setTimeout(() => request.abort(), timeout);
	try {
		if (!accept(await ask(points.length ? points.at(-1).at : 0))) accept(await ask(0));
		answered = performance.now();
		answeredAt = Date.now();
		failures = 0;
		problem = "";
		draw();
	} catch (e) {
		failures++;
		problem = e instanceof TypeError ? "The daemon cannot be reached. It may have ended."
			: e.name === "AbortError" ? "The daemon does not answer." : `The page cannot be updated: ${e.message}.`;
	} finally {
		clearTimeout(limit);
		request = null;
	}
	live();
	if (!paused() && !document.hidden) timer = setTimeout(update, failures ? Math.min(30000, interval * 2 ** (failures - 1)) : interval);
}

$("pause").addEventListener("click", () => {
	$("pause").setAttribute("aria-pressed", String(!paused()));
	clearTimeout(timer);
	if (!paused()) update();
	live();
});
$("now").addEventListener("click", update);
$("cursor").addEventListener("input", () => {
	const i = Number($("cursor").value);
	show(i >= points.length - 1 ? null : points[i].at);
});
$("times").addEventListener("submit", e => e.preventDefault());
document.addEventListener("visibilitychange", () => {
	clearTimeout(timer);
	if (!document.hidden && !paused()) update();
});
let resized = 0;
window.addEventListener("resize", () => {
	clearTimeout(resized);
	resized = setTimeout(draw, 100);
});
setInterval(live, 1000);
update();
