// Figures: what the cache does at this moment, drawn anew whenever it was asked.

import { byId, el, say, show, table } from "./dom.js";
import * as format from "./format.js";
import { columns, stack } from "./plots.js";

const HITS = { full: "full hit", partial: "partial hit", none: "no hit" };

const STATES = [
  ["shared", "cached, in use"],
  ["idle", "cached, idle"],
  ["private", "of one request"],
  ["free", "free"],
];

export function showFigures(figures) {
  showHits(figures);
  showFirstTokens(figures.first_token);
  showMemory(figures);
  say(byId("model"), figures.model);
  say(byId("tree-count"), format.plural(figures.num_runs, "run"));
  const load = `${format.count(figures.running)} running, ${format.count(figures.waiting)} waiting`;
  say(byId("state"), figures.is_accepting ? load : `draining, ${load}`);
}

function showHits({ hits, bucket_s: bucketS }) {
  const sum = (name) => hits.reduce((total, each) => total + each[name], 0);
  const [prompt, hit] = [sum("prompt_tokens"), sum("hit_tokens")];
  say(byId("hit-rate"), prompt > 0 ? format.percent(hit / prompt) : "–");
  const note =
    prompt > 0
      ? `${format.count(hit)} of ${format.count(prompt)} prompt tokens, ` +
        format.plural(sum("requests"), "request")
      : "No request has ended in this time.";
  say(byId("hit-note"), note);
  const items = hits.map((each) => ({
    at: Math.round(each.age_s / bucketS),
    amount: each.prompt_tokens,
    filled: each.hit_tokens,
  }));
  const label = `Prompt tokens of every ${bucketS} seconds; the filled part was cached`;
  show(byId("hit-plot"), columns(label, items, 60));
}

function showFirstTokens(times) {
  const order = ["full", "partial", "none"];
  const known = new Map(times.map((each) => [each.hit, each]));
  const most = Math.max(1e-9, ...times.map((each) => each.p50_s ?? 0));
  const rows = order
    .map((hit) => known.get(hit))
    .filter((each) => each !== undefined)
    .map((each) => [
      HITS[each.hit] ?? each.hit,
      meter((each.p50_s ?? 0) / most),
      format.duration(each.p50_s),
      format.duration(each.p95_s),
      format.count(each.requests),
    ]);
  const titles = [["", false], ["", false], ["median", true], ["95 %", true], ["requests", true]];
  show(byId("ttft"), table("Time to first token by what hit", titles, rows));
}

function meter(share) {
  const bar = el("span", { class: "meter", "aria-hidden": "true" }, el("span", {}));
  bar.firstChild.style.width = `${Math.max(0, Math.min(100, 100 * share))}%`;
  return bar;
}

function showMemory({ blocks, block_bytes: blockBytes, ...figures }) {
  const size = (amount) =>
    blockBytes === null ? format.plural(amount, "block") : format.bytes(amount * blockBytes);
  say(byId("memory-total"), size(blocks.total));
  const items = STATES.map(([name]) => ({ name, amount: blocks[name] }));
  show(byId("memory-bar"), stack("Blocks by state", items));
  const rows = STATES.map(([name, title]) => [
    el("span", { class: "key" }, el("i", { class: `state-${name}` }), title),
    size(blocks[name]),
    format.count(blocks[name]),
    format.percent(blocks.total > 0 ? blocks[name] / blocks.total : 0),
  ]);
  show(
    byId("memory"),
    table(
      "Memory by state",
      [["", false], ["memory", true], ["blocks", true], ["share", true]],
      rows,
    ),
    el(
      "p",
      { class: "note" },
      `${format.count(figures.num_pinned_blocks)} of at most ` +
        `${format.plural(figures.max_pinned_blocks, "block")} pinned, ` +
        `${format.count(figures.num_evicted_blocks)} evicted so far`,
    ),
  );
}
