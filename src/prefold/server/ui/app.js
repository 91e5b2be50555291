// App: who reads the page, and when it asks for what it shows.

import { Api } from "./api.js";
import { byId, say } from "./dom.js";
import { Explorer } from "./explorer.js";
import { showFigures } from "./figures.js";
import { showMisses, showNothing, showWhatIf, showWorth } from "./panels.js";

const FIGURES_MS = 2_000;
/** Every so many times, the slower panels are asked for too. */
const PANELS_EACH = 3;
const MISSES = 50;

const api = new Api();
let timer = null;
let numPolls = 0;
let isStarted = false;

const explorer = new Explorer(api, {
  tell: (text) => tell(text),
  fail: (error) => fail(error),
  changed: () => poll(),
});

function tell(text, isWrong = false) {
  const said = byId("said");
  say(said, text);
  said.classList.toggle("wrong", isWrong);
  said.classList.add("shown");
  clearTimeout(tell.timer);
  tell.timer = setTimeout(() => said.classList.remove("shown"), isWrong ? 9_000 : 4_000);
}

function fail(error) {
  if (error.status === 401) signOut("The token is not the server's; read its file again.");
  else tell(error.message, true);
}

// -- coming and going ---------------------------------------------------------------------

function signOut(why = "") {
  api.forget();
  stop();
  isStarted = false;
  say(byId("login-error"), why);
  byId("login").hidden = false;
  byId("app").hidden = true;
  byId("sign-out").hidden = true;
  for (const id of ["model", "state"]) say(byId(id), "");
  byId("token").value = "";
  byId("token").focus();
}

async function enter() {
  try {
    await refresh();
  } catch (error) {
    fail(error);
    if (api.hasToken) {
      byId("login").hidden = false;
      say(byId("login-error"), error.message);
    }
    return;
  }
  byId("login").hidden = true;
  byId("app").hidden = false;
  byId("sign-out").hidden = false;
  isStarted = true;
  plan();
  await explorer.reload().catch(fail);
}

byId("login-form").addEventListener("submit", (event) => {
  event.preventDefault();
  say(byId("login-error"), "");
  if (api.keep(byId("token").value.trim())) void enter();
  else say(byId("login-error"), "A token is one line of at least 32 signs without spaces.");
});
byId("sign-out").addEventListener("click", () => signOut());

// -- polling ------------------------------------------------------------------------------

async function refresh() {
  const figures = await api.get("cache/figures");
  explorer.know(figures);
  showFigures(figures);
  if (numPolls % PANELS_EACH === 0) await refreshPanels(figures);
  numPolls += 1;
}

async function refreshPanels({ views, block_bytes: blockBytes }) {
  const panels = {
    whatif: ["cache/whatif", {}, (found) => showWhatIf(found, blockBytes)],
    worth: ["cache/worth", {}, showWorth],
    misses: ["cache/misses", { limit: MISSES }, showMisses],
  };
  const asked = Object.entries(panels).map(async ([name, [path, fields, showIt]]) => {
    // What the server says it lacks is not asked for.
    if (!views.includes(name)) showNothing(name);
    else showIt(await api.get(path, fields));
  });
  await Promise.all(asked);
}

function stop() {
  clearTimeout(timer);
  timer = null;
}

function plan() {
  stop();
  if (isStarted && !document.hidden) timer = setTimeout(() => void poll(), FIGURES_MS);
}

async function poll() {
  stop();
  try {
    await refresh();
  } catch (error) {
    if (error.status === 401) {
      fail(error);
      return;
    }
    say(byId("state"), `${error.message}; trying again`);
  }
  plan();
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) stop();
  else if (isStarted) void poll();
});

if (api.hasToken) void enter();
else byId("login").hidden = false;
