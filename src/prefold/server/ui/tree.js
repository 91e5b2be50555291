// Tree: rows of runs that open and close, by pointer and by keyboard.
//
// Rows stand one after another in one list, each with its level, as the ARIA tree pattern
// allows; what is closed is not there. One row at a time can be reached by Tab. Children
// come a page at a time, so however many there are, only those asked for become rows.

import { el } from "./dom.js";
import * as format from "./format.js";

export class Tree {
  #list;
  #load;
  #choose;
  #open;
  #rows = new Map(); // by run id
  #chosen = null;

  /** Show runs in a list. `load(parent, cursor)` resolves to a page of them,
   *  `choose(run)` is told what is chosen, `open(run)` that it is to be looked at. */
  constructor(list, { load, choose, open }) {
    this.#list = list;
    this.#load = load;
    this.#choose = choose;
    this.#open = open;
    list.addEventListener("keydown", (event) => this.#onKey(event));
    list.addEventListener("click", (event) => this.#onClick(event));
    list.addEventListener("focusin", (event) => this.#onFocus(event));
  }

  get size() {
    return this.#rows.size;
  }

  /** Put rows in place of all there are: pages by the id of the run they continue, null for
   *  those that prompts begin with. What has a page is open. `notes` are said of runs, by id.
   *  What was chosen stays so, with the focus where it had it, if it is among them. */
  reset(pages, notes = new Map()) {
    const hadFocus = this.#list.contains(document.activeElement);
    const chosen = this.#chosen?.run.id;
    this.#rows.clear();
    this.#list.replaceChildren();
    this.#add(pages.get(null), null, null, notes);
    for (const [id, page] of pages) {
      const row = this.#rows.get(id);
      if (!row?.isClosed) continue;
      row.isOpen = true;
      row.element.setAttribute("aria-expanded", "true");
      this.#add(page, row, row.element, notes);
    }
    this.#chosen = this.#rows.get(chosen) ?? null;
    this.#chosen?.element.setAttribute("aria-selected", "true");
    const first = this.#chosen?.element ?? this.#list.firstElementChild;
    first?.setAttribute("tabindex", "0");
    this.#choose(this.#chosen?.run ?? null);
    if (hadFocus) this.#reach(first);
  }

  /** Load as many rows as there are now, and below those that are open; change nothing.
   *  Resolves to pages as `reset` takes them, parents before children. */
  async loadAnew() {
    const pages = new Map([[null, await this.#loadAsMany(null)]]);
    for (const [, { data }] of pages) {
      // The map grows while it is walked, until nothing below is open.
      for (const { id } of data) {
        if (!this.#rows.get(id)?.isOpen) continue;
        const page = await this.#loadAsMany(id);
        if (page) pages.set(id, page);
      }
    }
    return pages;
  }

  async #loadAsMany(parent) {
    const isBelow = (row) => (row.parent?.run.id ?? null) === parent;
    const wanted = [...this.#rows.values()].filter(isBelow).length;
    try {
      let page = await this.#load(parent, null);
      const data = [...page.data];
      while (page.next && data.length < wanted) {
        page = await this.#load(parent, page.next);
        data.push(...page.data);
      }
      return { data, next: page.next };
    } catch (error) {
      // A run may be evicted between its parent's answer and its own.
      if (parent !== null && error.status === 404) return null;
      throw error;
    }
  }

  row(id) {
    return this.#rows.get(id) ?? null;
  }

  /** Take a row and all below it away; focus what stands before it. */
  remove(id) {
    const row = this.#rows.get(id);
    if (!row) return;
    const next = row.element.previousElementSibling;
    this.collapse(row);
    this.#forget(row);
    const first = next ?? this.#list.firstElementChild;
    if (first) this.#reach(first);
  }

  /** Show a run's present figures in its row. */
  update(run) {
    const row = this.#rows.get(run.id);
    if (!row) return;
    row.run = run;
    row.element.replaceChildren(...cells(run, row));
    label(row);
  }

  async expand(row) {
    if (!row.isClosed) return;
    row.isOpen = true;
    row.element.setAttribute("aria-expanded", "true");
    row.element.setAttribute("aria-busy", "true");
    try {
      const page = await this.#load(row.run.id, null);
      if (row.isOpen && this.#rows.has(row.run.id)) this.#add(page, row, row.element, new Map());
    } catch (error) {
      this.collapse(row);
      throw error;
    } finally {
      row.element.removeAttribute("aria-busy");
    }
  }

  collapse(row) {
    if (!row.isOpen) return;
    row.isOpen = false;
    row.element.setAttribute("aria-expanded", "false");
    let next = row.element.nextElementSibling;
    while (next && Number(next.getAttribute("aria-level")) > row.level) {
      const following = next.nextElementSibling;
      if (next.dataset.id) this.#rows.delete(next.dataset.id);
      next.remove();
      next = following;
    }
  }

  // -- rows -------------------------------------------------------------------------------

  #add(page, parent, after, notes) {
    const level = parent ? parent.level + 1 : 1;
    const made = [];
    for (const run of page.data) {
      if (this.#rows.has(run.id)) continue; // pages may repeat one
      const row = { run, level, parent, isOpen: false, note: notes.get(run.id) ?? null };
      Object.defineProperty(row, "isClosed", {
        get: () => row.run.children > 0 && !row.isOpen,
      });
      row.element = el("li", {
        role: "treeitem",
        class: "row",
        tabindex: "-1",
        "aria-level": level,
        "aria-selected": "false",
        "data-id": run.id,
      });
      row.element.style.setProperty("--level", String(level - 1));
      row.element.append(...cells(run, row));
      label(row);
      this.#rows.set(run.id, row);
      made.push(row.element);
    }
    if (page.next) made.push(this.#more(page, parent, level));
    if (after) after.after(...made);
    else this.#list.append(...made);
    return made;
  }

  #more(page, parent, level) {
    const item = el(
      "li",
      {
        role: "treeitem",
        class: "row more",
        tabindex: "-1",
        "aria-level": level,
        "aria-selected": "false",
      },
      el("span", { class: "name" }, "Show more"),
    );
    item.style.setProperty("--level", String(level - 1));
    item.activate = async () => {
      const next = await this.#load(parent ? parent.run.id : null, page.next);
      const made = this.#add(next, parent, item, new Map());
      const first = made[0] ?? item.previousElementSibling;
      item.remove();
      if (first) this.#reach(first);
    };
    return item;
  }

  #forget(row) {
    this.#rows.delete(row.run.id);
    if (this.#chosen === row) this.#chosen = null;
    row.element.remove();
  }

  // -- what the reader does ---------------------------------------------------------------

  #onClick(event) {
    const item = event.target.closest("li");
    if (!item) return;
    if (item.activate) void this.#activate(item);
    else if (event.target.closest(".twist")) void this.#toggle(this.#rowOf(item));
  }

  #onFocus(event) {
    const item = event.target.closest("li");
    if (!item) return;
    for (const other of this.#list.querySelectorAll('[tabindex="0"]')) {
      other.setAttribute("tabindex", "-1");
    }
    item.setAttribute("tabindex", "0");
    const row = this.#rowOf(item);
    if (!row || row === this.#chosen) return;
    this.#chosen?.element.setAttribute("aria-selected", "false");
    this.#chosen = row;
    item.setAttribute("aria-selected", "true");
    this.#choose(row.run);
  }

  #onKey(event) {
    const item = event.target.closest("li");
    if (!item || event.altKey || event.ctrlKey || event.metaKey) return;
    const row = this.#rowOf(item);
    const keys = {
      ArrowDown: () => this.#reach(item.nextElementSibling),
      ArrowUp: () => this.#reach(item.previousElementSibling),
      Home: () => this.#reach(this.#list.firstElementChild),
      End: () => this.#reach(this.#list.lastElementChild),
      ArrowRight: () => {
        if (row?.isClosed) void this.#toggle(row);
        else if (row?.isOpen) this.#reach(item.nextElementSibling);
      },
      ArrowLeft: () => {
        if (row?.isOpen) this.collapse(row);
        else this.#reach(row?.parent?.element ?? null);
      },
      Enter: () => (item.activate ? void this.#activate(item) : this.#open(row.run)),
      " ": () => (item.activate ? void this.#activate(item) : void this.#toggle(row)),
    };
    const act = keys[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  async #toggle(row) {
    if (!row) return;
    if (row.isOpen) this.collapse(row);
    else await this.expand(row).catch((error) => this.#fail(error));
  }

  async #activate(item) {
    await item.activate().catch((error) => this.#fail(error));
  }

  #fail(error) {
    this.#list.dispatchEvent(new CustomEvent("failed", { detail: error }));
  }

  #rowOf(item) {
    return this.#rows.get(item.dataset.id) ?? null;
  }

  #reach(item) {
    item?.focus();
  }
}

function cells(run, row) {
  const to = run.start + run.tokens;
  const marks = [
    run.pinned ? el("span", { class: "mark pinned" }, "pinned") : null,
    run.leases > 0 ? el("span", { class: "mark used" }, "in use") : null,
    run.is_partial ? el("span", { class: "mark" }, "part of a block") : null,
    run.is_salted ? el("span", { class: "mark" }, "salted") : null,
    ...run.approvals.map((each) =>
      el("span", { class: "mark approved" }, el("bdi", {}, each.label)),
    ),
  ];
  if (run.audience === "approved" && run.approvals.length === 0) {
    marks.push(el("span", { class: "mark" }, "withdrawn"));
  }
  return [
    el(
      "span",
      { class: "name" },
      el("span", { class: run.children > 0 ? "twist" : "twist leaf", "aria-hidden": "true" }),
      el(
        "span",
        { class: "what" },
        el("span", { class: "domain" }, el("bdi", {}, run.domain)),
        el("span", { class: "place" }, `${format.count(run.start)}–${format.count(to)}`),
        ...marks,
        row.note ? el("span", { class: "mark found" }, row.note) : null,
        run.text === null ? null : el("span", { class: "text" }, el("bdi", {}, shown(run.text))),
      ),
    ),
    cell("tokens", format.count(run.tokens)),
    cell("memory", run.memory),
    cell("hits", format.count(run.hits)),
    cell("idle", format.span(run.idle_s)),
    cell("age", format.span(run.age_s)),
    cell("priority", format.count(run.priority)),
  ];
}

function cell(name, text) {
  return el("span", { class: `cell ${name}` }, text);
}

function shown(text) {
  return text.replace(/\s+/g, " ").trim();
}

function label(row) {
  const { run, element } = row;
  const parts = [
    `${run.domain}, ${run.audience}`,
    `tokens ${run.start} to ${run.start + run.tokens}`,
    format.plural(run.hits, "hit"),
    `last used ${format.span(run.idle_s)} ago`,
    run.pinned ? "pinned" : null,
    run.leases > 0 ? "in use" : null,
    ...run.approvals.map((each) => `approved as ${each.label}`),
    row.note,
    run.text,
  ];
  element.setAttribute("aria-label", parts.filter((part) => part !== null).join(", "));
  if (run.children > 0) element.setAttribute("aria-expanded", String(row.isOpen));
  else element.removeAttribute("aria-expanded");
}
