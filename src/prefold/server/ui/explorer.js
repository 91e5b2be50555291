// Explorer: the prefix tree, searches in it, and what is done to a run.

import { byId, el, say, show } from "./dom.js";
import { ask } from "./dialogs.js";
import { showDetails } from "./details.js";
import * as format from "./format.js";
import { Tree } from "./tree.js";

const PAGE = 50;

const HINTS = {
  domain: "acme/search",
  prompt: "You are the assistant of …",
  tokens: "464, 1502, 318",
};

export class Explorer {
  #api;
  #tell;
  #fail;
  #changed;
  #tree;
  #blockBytes = null;
  #showsText = false;
  #run = null;
  #search = null;
  #turn = 0;
  #tenants = [];

  /** Use an API; `tell(text)` says what was done, `fail(error)` what went wrong, and
   *  `changed()` that the figures are others now. */
  constructor(api, { tell, fail, changed }) {
    this.#api = api;
    this.#tell = tell;
    this.#fail = fail;
    this.#changed = changed;
    this.#tree = new Tree(byId("tree"), {
      load: (parent, cursor) => this.#load(parent, cursor),
      choose: (run) => this.#choose(run),
      open: (run) => this.#openDetails(run),
    });
    byId("tree").addEventListener("failed", (event) => this.#fail(event.detail));
    byId("details").addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.#run) {
        this.#tree.row(this.#run.id)?.element.focus();
      }
    });
    byId("reload").addEventListener("click", () => void this.#guard(() => this.reload()));
    byId("search").addEventListener("submit", (event) => {
      event.preventDefault();
      void this.#guard(() => this.#find());
    });
    byId("search-text").addEventListener("input", () => {
      // The cross that empties the field, or the reader, wants the whole tree back.
      if (byId("search-text").value === "" && this.#search) {
        this.#search = null;
        void this.#guard(() => this.reload());
      }
    });
    byId("search-kind").addEventListener("change", () => this.#onKind());
    this.#choose(null);
  }

  /** Take what is the same for all runs from the figures. */
  know({ block_bytes: blockBytes, shows_text: showsText, tenants }) {
    this.#blockBytes = blockBytes;
    this.#showsText = showsText;
    if (tenants.join("\n") === this.#tenants.join("\n")) return;
    this.#tenants = tenants;
    const picked = byId("search-tenant").value;
    show(
      byId("search-tenant"),
      tenants.map((name) => el("option", { value: name }, `as ${name}`)),
    );
    if (tenants.includes(picked)) byId("search-tenant").value = picked;
    this.#onKind();
  }

  /** Show the tree as it is now, as far as it is open. */
  async reload() {
    if (this.#search) {
      await this.#search();
      return;
    }
    const isLatest = this.#takeTurn();
    const pages = await this.#tree.loadAnew();
    if (!isLatest()) return;
    this.#tree.reset(pages);
    say(byId("found"), "");
    this.#note(this.#tree.size === 0 ? "Nothing is cached yet." : "");
  }

  /** Return what tells whether nobody has asked for another tree since. */
  #takeTurn() {
    this.#turn += 1;
    const turn = this.#turn;
    return () => turn === this.#turn;
  }

  // -- loading ----------------------------------------------------------------------------

  async #load(parent, cursor) {
    const page = await this.#api.get("cache/runs", { parent, cursor, limit: PAGE });
    return { ...page, data: page.data.map((run) => this.#sized(run)) };
  }

  #sized(run) {
    const memory =
      this.#blockBytes === null
        ? format.plural(run.blocks, "block")
        : format.bytes(run.blocks * this.#blockBytes);
    return { ...run, memory };
  }

  // -- searching --------------------------------------------------------------------------

  #onKind() {
    const kind = byId("search-kind").value;
    byId("search-text").placeholder = HINTS[kind];
    byId("search-tenant").hidden = kind === "domain" || this.#tenants.length < 2;
  }

  async #find() {
    const text = byId("search-text").value;
    const kind = byId("search-kind").value;
    if (text.trim() === "") {
      this.#search = null;
      await this.reload();
      return;
    }
    const tenant = byId("search-tenant").value || null;
    this.#search = () => this.#searchFor(kind, text, tenant);
    await this.#search();
  }

  async #searchFor(kind, text, tenant) {
    const isLatest = this.#takeTurn();
    const body = kind === "domain" ? { domain: text.trim() } : { prompt: text };
    if (kind === "tokens") body.prompt = tokenIds(text);
    const result = await this.#api.post("cache/search", body);
    const notes = new Map();
    for (const found of result.data) {
      if (found.matched_tokens === null) continue;
      notes.set(
        found.run.id,
        `agrees in ${format.count(found.matched_tokens)} of ${format.count(result.prompt_tokens)}`,
      );
    }
    const runs = result.data.map((found) => this.#sized(found.run));
    const all = result.is_complete ? "" : ", and there may be more";
    const why = kind === "domain" ? "" : ` ${await this.#reason(body.prompt, tenant)}`;
    if (!isLatest()) return;
    this.#tree.reset(new Map([[null, { data: runs, next: null }]]), notes);
    say(byId("found"), `${format.plural(runs.length, "run")} found${all}.${why}`);
    this.#note(runs.length === 0 ? "Nothing that is cached begins so." : "");
  }

  /** Return what a request with that prompt would hit now, and why not more. */
  async #reason(prompt, tenant) {
    const name = tenant ?? this.#tenants[0];
    const reply = await this.#api.post("cache/lookup", { prompt, tenant: name });
    const [found] = reply.prompts;
    return (
      `A request of ${name} would hit ${format.count(found.hit_tokens)} of ` +
      `${format.plural(found.prompt_tokens, "token")}: ${found.explanation}.`
    );
  }

  #note(text) {
    say(byId("tree-empty"), text);
    byId("tree-empty").hidden = text === "";
  }

  // -- one run ----------------------------------------------------------------------------

  #choose(run) {
    this.#run = run;
    const actions = run === null || run.is_partial ? [] : this.#actions(run);
    showDetails(byId("details"), run, {
      actions,
      withdraw: (approval) => void this.#withdraw(run, approval),
      openParent: () => void this.#guard(() => this.#openParent(run)),
    });
  }

  #actions(run) {
    const found = [
      { title: "Invalidate…", isDangerous: true, act: () => void this.#invalidate(run) },
    ];
    if (run.is_pin) found.push({ title: "Unpin", act: () => void this.#pin(run, false) });
    else found.push({ title: "Pin", act: () => void this.#pin(run, true) });
    if (!run.is_salted) {
      found.push({ title: "Approve…", act: () => void this.#approve(run) });
    }
    return found;
  }

  async #openDetails(run) {
    byId("details").focus();
    if (this.#showsText) await this.#guard(() => this.#refresh(run.id));
  }

  async #openParent(run) {
    const row = this.#tree.row(run.path.at(-1));
    if (row) {
      row.element.focus();
      return;
    }
    const parent = this.#sized(await this.#api.get(`cache/runs/${run.path.at(-1)}`));
    this.#tree.reset(new Map([[null, { data: [parent], next: null }]]));
    byId("tree").firstElementChild.focus();
  }

  /** Show a run as it is now, in its row and in the details. */
  async #refresh(id) {
    let run;
    try {
      run = this.#sized(await this.#api.get(`cache/runs/${id}`));
    } catch (error) {
      // It was dropped from here while this was asked: there is nothing to tell.
      if (error.status === 404 && !this.#tree.row(id)) return;
      throw error;
    }
    this.#tree.update(run);
    if (this.#run?.id === id) this.#choose(run);
  }

  async #invalidate(run) {
    const receipt = await ask({
      title: "Invalidate this run?",
      text:
        `It and all that continues it, tokens ${format.count(run.start)} onwards of ` +
        `${run.domain}, will not be found any more. Running requests finish.`,
      verb: "Invalidate",
      isDangerous: true,
      act: () => this.#api.post(`cache/runs/${run.id}/invalidate`),
    });
    if (receipt === null) return;
    this.#tree.remove(run.id);
    const most = receipt.is_upper_bound ? "at most " : "";
    this.#tell(`Dropped ${most}${format.plural(receipt.dropped_blocks, "block")}.`);
    if (this.#tree.size === 0) await this.#guard(() => this.reload());
    this.#changed();
  }

  async #approve(run) {
    const approval = await ask({
      title: "Approve this run?",
      text:
        `All that it continues and holds is computed once more, and shared by requests of ` +
        `${run.domain} and of all domains below it.`,
      fields: [
        { name: "label", label: "Label", isNeeded: true, hint: "What people call it." },
        { name: "pinned", label: "Pinned: never evicted", type: "checkbox" },
        {
          name: "ttl_s",
          label: "Ends after, in seconds",
          type: "number",
          hint: "Leave it empty for an approval without end.",
        },
      ],
      verb: "Approve",
      act: ({ label, pinned, ttl_s: ttl }) =>
        this.#api.post(`cache/runs/${run.id}/approve`, { label, pinned, ttl_s: ttl }),
    });
    if (approval === null) return;
    this.#tell(`Approved ${format.plural(approval.tokens, "token")} as ${approval.label}.`);
    await this.#guard(() => this.reload());
    this.#changed();
  }

  async #withdraw(run, approval) {
    const receipt = await ask({
      title: "Withdraw this approval?",
      text: `Requests will not find ${approval.label} any more.`,
      verb: "Withdraw",
      isDangerous: true,
      act: () => this.#api.post("cache/withdraw", { id: approval.id }),
    });
    if (receipt === null) return;
    this.#tell(`Withdrew ${approval.label}.`);
    await this.#guard(() => this.reload());
    this.#changed();
  }

  async #pin(run, isWanted) {
    await this.#guard(async () => {
      const reply = await this.#api.post(isWanted ? "cache/pin" : "cache/unpin", {
        run: run.id,
      });
      const now = format.plural(reply.num_pinned_blocks, "block");
      this.#tell(`${isWanted ? "Pinned" : "Unpinned"}: ${now} pinned in all.`);
      await this.#refresh(run.id);
      this.#changed();
    });
  }

  async #guard(work) {
    try {
      await work();
    } catch (error) {
      this.#fail(error);
    }
  }
}

function tokenIds(text) {
  const ids = text.split(/[\s,[\]]+/).filter((part) => part !== "");
  if (ids.length === 0 || ids.some((id) => !/^[0-9]{1,9}$/.test(id))) {
    throw new Error("Token ids are whole numbers, with commas or spaces between them.");
  }
  return ids.map(Number);
}
