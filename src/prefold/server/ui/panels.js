// Panels: what if, worth, and the latest misses. A server may lack any of them.

import { byId, el, show, table } from "./dom.js";
import * as format from "./format.js";
import { curve } from "./plots.js";

const UNAVAILABLE = "This server does not have this figure.";

/** Say in a panel that there is nothing to show, and why. */
export function showNothing(id, text = UNAVAILABLE) {
  show(byId(id), el("p", { class: "note" }, text));
}

export function showWhatIf(found, blockBytes) {
  if (found.points.length === 0 || found.requests === 0) {
    showNothing("whatif", "Too few requests so far to tell.");
    return;
  }
  const size = (blocks) =>
    blockBytes === null ? format.plural(blocks, "block") : format.bytes(blocks * blockBytes);
  const points = found.points.map((point) => ({
    x: point.factor,
    y: point.hit_rate,
    name: point.factor === 1 ? "now" : `× ${format.number(point.factor)}`,
    isHere: point.factor === 1,
  }));
  const rows = found.points.map((point) => [
    point.factor === 1 ? "now" : `× ${format.number(point.factor)}`,
    size(point.capacity_blocks),
    format.percent(point.hit_rate),
    format.duration(point.saved_s),
    format.percent(point.saved_share),
  ]);
  show(
    byId("whatif"),
    curve("Hit rate in per cent against the size of the cache", points),
    table(
      "Hit rate and prefill time saved by the size of the cache",
      [["size", false], ["memory", true], ["hit rate", true], ["saved", true], ["of prefill", true]],
      rows,
    ),
    el(
      "p",
      { class: "note" },
      `Estimated from ${format.plural(found.requests, "request")}, ` +
        `${format.percent(found.sample_rate)} of what they begin with.`,
    ),
  );
}

export function showWorth(found) {
  show(
    byId("worth"),
    el("p", { class: "verdict" }, found.verdict ?? ""),
    found.total ? list(found.total) : null,
    facts("Tenants", found.tenants ?? []),
    facts("Best prefixes", found.best ?? []),
    facts("Worst prefixes", found.worst ?? []),
  );
}

/** Return an object's fields that hold one value, with their names. */
function list(item) {
  const names = Object.keys(item).filter((name) => !isNested(item[name]));
  return el(
    "dl",
    { class: "facts" },
    names.map((name) =>
      el("div", {}, el("dt", {}, words(name)), el("dd", {}, value(name, item[name]))),
    ),
  );
}

/** Return a table of objects, one column a field that holds one value. */
function facts(title, items) {
  if (items.length === 0) return null;
  const names = Object.keys(items[0]).filter((name) => !isNested(items[0][name]));
  const columns = names.map((name) => [words(name), typeof items[0][name] === "number"]);
  const rows = items.map((item) => names.map((name) => value(name, item[name])));
  return el(
    "details",
    { "data-key": title },
    el("summary", {}, title),
    el("div", { class: "wide", tabindex: "0", role: "group", "aria-label": title },
      table(title, columns, rows)),
  );
}

function isNested(it) {
  return it !== null && typeof it === "object";
}

/** What is counted each second, or each GiB and second, is a number with that in its name. */
const PER = /_per(_gib)?_s$/;

function words(name) {
  const shown = PER.test(name) ? name : name.replace(/_(s|ms|bytes|share)$/, "");
  return shown.replaceAll("_", " ").replace(" gib", " GiB");
}

function value(name, it) {
  if (it === null || it === undefined) return "–";
  if (typeof it === "boolean") return it ? "yes" : "no";
  if (typeof it !== "number") return el("bdi", {}, String(it));
  if (PER.test(name)) return format.number(it);
  if (name.endsWith("_ms")) return format.duration(it / 1000);
  if (name.endsWith("_bytes")) return format.bytes(it);
  if (name.endsWith("_s")) return format.duration(it);
  if (/(_share|_rate)$/.test(name) && it <= 1) return format.percent(it);
  return format.number(it);
}

export function showMisses(found) {
  if (found.data.length === 0) {
    showNothing("misses", "No request has missed anything so far.");
    return;
  }
  const rows = found.data.map((miss) => [
    format.clock(miss.at),
    el("bdi", {}, miss.tenant ?? "–"),
    el("span", { class: "mark kind" }, miss.reason.kind.replaceAll("_", " ")),
    el(
      "span",
      { class: "reason" },
      el("bdi", {}, miss.reason.sentence),
      miss.reason.culprit
        ? el(
            "span",
            { class: "mark culprit" },
            el("bdi", {}, culprit(miss.reason.culprit)),
          )
        : null,
    ),
    `${format.count(miss.hit_tokens)} of ${format.count(miss.prompt_tokens)}`,
    el("code", {}, miss.request_id),
  ]);
  const titles = [
    ["At", false],
    ["Tenant", false],
    ["Kind", false],
    ["Why", false],
    ["Tokens hit", true],
    ["Request", false],
  ];
  const shown = table("Latest misses with reasons", titles, rows);
  shown.classList.add("misses");
  show(byId("misses"), shown);
}

function culprit({ kind, detail }) {
  const name = kind.replaceAll("_", " ");
  return detail ? `${name}: ${typeof detail === "string" ? detail : JSON.stringify(detail)}` : name;
}
