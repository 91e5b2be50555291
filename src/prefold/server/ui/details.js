// Details: all that is known of one run, and what can be done to it.

import { el, show } from "./dom.js";
import * as format from "./format.js";

const AUDIENCES = {
  own: "requests of this domain",
  approved: "this domain and all below it, while an approval holds",
  throwaway: "one running request",
};

/** Show a run. Actions are {title, act, isDangerous} for the run as it is. */
export function showDetails(element, run, { actions, withdraw, openParent }) {
  if (element.dataset.run !== run?.id) {
    // Nothing of another run is kept, not even how far its text was scrolled.
    show(element);
    element.scrollTop = 0;
    if (run === null) delete element.dataset.run;
    else element.dataset.run = run.id;
  }
  if (run === null) {
    show(
      element,
      el("p", { class: "note" }, "Choose a run to see how it is kept, and what to do to it."),
    );
    return;
  }
  const rows = [
    ["Domain", el("bdi", {}, run.domain)],
    ["Read by", `${AUDIENCES[run.audience] ?? run.audience}${run.is_salted ? ", with a salt" : ""}`],
    ["Position", `tokens ${format.count(run.start)} to ${format.count(run.start + run.tokens)}`],
    ["Size", `${format.plural(run.tokens, "token")}, ${format.plural(run.blocks, "block")}`],
    ["Memory", run.memory],
    ["Hits", `${format.count(run.hits)}, ${format.count(run.forks)} went on differently`],
    ["Last use", `${format.span(run.idle_s)}${run.idle_s < 1 ? "" : " ago"}`],
    ["Age", format.span(run.age_s)],
    ["Used by", format.plural(run.leases, "running request")],
    ["Kept", kept(run)],
    ["Priority", format.count(run.priority)],
    ["Goes on with", format.plural(run.children, "run")],
    ["Fingerprint", `number ${run.fingerprint}`],
  ];
  show(
    element,
    el("h3", {}, el("bdi", {}, run.domain)),
    el(
      "p",
      { class: "buttons" },
      actions.map(({ title, act, isDangerous }) =>
        el(
          "button",
          { type: "button", class: isDangerous ? "danger" : null, onclick: act },
          title,
        ),
      ),
      run.path.length > 0
        ? el("button", { type: "button", class: "quiet", onclick: openParent }, "Go to parent")
        : null,
    ),
    approvals(run, withdraw),
    run.text === null
      ? null
      : el("pre", { class: "text", tabindex: "0", "aria-label": "Text" }, el("bdi", {}, run.text)),
    el(
      "dl",
      {},
      rows.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]),
    ),
  );
}

function kept(run) {
  if (run.pinned) return "pinned: never evicted";
  if (run.expires_in_s === null) return "until its blocks are needed";
  return `${format.span(run.expires_in_s)} more at most, unless it is used`;
}

function approvals(run, withdraw) {
  if (run.approvals.length === 0) return null;
  return el(
    "ul",
    { class: "approvals", "aria-label": "Approvals" },
    run.approvals.map((each) =>
      el(
        "li",
        { "data-key": each.id },
        el("bdi", {}, each.label),
        each.pinned ? " (pinned) " : " ",
        el(
          "button",
          { type: "button", class: "quiet", onclick: () => withdraw(each) },
          "Withdraw…",
        ),
      ),
    ),
  );
}
