"""The page in a real browser against a real server: seen, driven, and kept to itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from prefold.server.keys import KeyFile
from support.browser import PageOf, open_browser
from support.server_process import ServerProcess, start_server
from support.sessions import CHAT_TEMPLATE
from support.tiny_models import make_llama, make_tokenizer, save_model

pytestmark = pytest.mark.e2e

RULES = "You are the assistant of Acme, and answer every question in one sentence. "
HOSTILE = "<script>document.title='owned'</script><img src=x onerror=alert(1)> "
HOSTILE_LABEL = "<b onclick=alert(1)>rules</b>"
NUM_OTHERS = 60


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model = save_model(make_llama(), tmp_path_factory.mktemp("llama"))
    tokenizer = make_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(model)
    directory = tmp_path_factory.mktemp("server")
    key_file = KeyFile(directory / "keys.json")
    keys = {name: key_file.create(name).text for name in ("acme", "globex")}
    config = (
        f'[server]\nkey_file = "{directory}/keys.json"\nallow_prompt_text = true\n'
        '[[tenants]]\nname = "acme"\n[[tenants]]\nname = "globex"\n'
    )
    with start_server(model, directory, "--cache-blocks", "1024", config=config) as running:
        running.wait_until_ready()
        _fill(running, keys)
        yield running


def _fill(server: ServerProcess, keys: dict[str, str]) -> None:
    prompts = {
        "globex": [
            *(f"{number:03} is another document of Globex" for number in range(NUM_OTHERS)),
            HOSTILE * 3,
        ],
        "acme": [
            f"{RULES}Question {number}: which parcel is it, and where?"
            for number in (0, 1, 2, 2)
        ],
    }
    for tenant, its in prompts.items():
        with server.public(keys[tenant]) as public:
            for prompt in its:
                body = {"model": server.ready["model"], "prompt": prompt, "max_tokens": 2}
                answer = public.post("/v1/completions", json={**body, "ignore_eos": True})
                assert answer.status_code == 200, answer.text


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as running:
        yield running


@pytest.fixture
def view(server: ServerProcess, browser: Browser) -> Iterator[PageOf]:
    view = PageOf(server, browser)
    yield view
    view.close()


def rows(page: Page) -> Locator:
    return page.get_by_role("tree").get_by_role("treeitem")


def acme_row(page: Page) -> Locator:
    return rows(page).filter(has_text=re.compile(r"^\s*acme")).first


def focused(page: Page) -> str:
    return str(page.evaluate("document.activeElement.getAttribute('aria-label') ?? ''"))


def search(page: Page, kind: str, text: str) -> None:
    page.get_by_label("Search for", exact=True).select_option(kind)
    page.get_by_label("What to search for").fill(text)
    page.keyboard.press("Enter")
    expect(page.locator("#found")).not_to_be_empty()


# -- coming in -------------------------------------------------------------------------


def test_the_token_is_asked_for_and_forgotten(view: PageOf) -> None:
    page = view.open()
    expect(page.get_by_label("Token", exact=True)).to_be_visible()
    expect(page.locator("#app")).to_be_hidden()
    page.get_by_label("Token", exact=True).fill("too short")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("at least 32")
    view.check()
    page = view.sign_in()
    assert view.server.token not in page.content()
    assert page.evaluate("localStorage.length") == 0
    assert page.evaluate("document.cookie") == ""
    page.reload()
    rows(page).first.wait_for()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token", exact=True)).to_be_focused()
    assert page.evaluate("sessionStorage.length") == 0
    view.check()
    page.reload()
    expect(page.get_by_label("Token", exact=True)).to_be_visible()
    view.check()


def test_a_wrong_token_is_refused_with_a_sentence(view: PageOf) -> None:
    page = view.open()
    page.get_by_label("Token", exact=True).fill("0" * 64)
    page.keyboard.press("Enter")
    expect(page.locator("#login-error")).to_contain_text("not the server's")
    expect(page.locator("#app")).to_be_hidden()
    # The browser itself notes the refusal, and nothing else is said.
    assert len(view.said) == 1
    assert "401" in view.said[0]


# -- figures ---------------------------------------------------------------------------


def test_it_shows_the_figures_of_this_moment(view: PageOf) -> None:
    page = view.sign_in()
    with view.server.admin() as admin:
        figures = admin.get("/cache/figures").json()
    blocks = figures["blocks"]
    assert blocks["idle"] > 100
    memory = page.get_by_role("table", name="Memory by state")
    expect(memory.get_by_role("row", name="cached, idle")).to_contain_text(
        f"{blocks['idle']:,}"
    )
    prompt = sum(each["prompt_tokens"] for each in figures["hits"])
    hit = sum(each["hit_tokens"] for each in figures["hits"])
    expect(page.locator("#hit-rate")).to_have_text(f"{100 * hit / prompt:.1f} %")
    times = page.get_by_role("table", name="Time to first token by what hit")
    for each in figures["first_token"]:
        row = times.get_by_role("row", name=re.compile(rf"^{each['hit']}|^no"))
        assert row.count() >= 1
    assert sum(each["requests"] for each in figures["first_token"]) == NUM_OTHERS + 5
    view.check()


def test_it_goes_on_asking_while_it_is_seen_and_not_otherwise(view: PageOf) -> None:
    page = view.sign_in()

    def num_asked() -> int:
        return sum("/cache/figures" in url for url in view.asked)

    for _ in range(2):
        page.wait_for_event("request", lambda request: "/cache/figures" in request.url)
    page.evaluate(
        "Object.defineProperty(document, 'hidden', {value: true, configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    # What was asked for before is answered first.
    page.wait_for_load_state("networkidle")
    before = num_asked()
    page.wait_for_timeout(4_500)
    assert num_asked() == before
    with page.expect_request(lambda request: "/cache/figures" in request.url):
        page.evaluate(
            "Object.defineProperty(document, 'hidden', {value: false});"
            "document.dispatchEvent(new Event('visibilitychange'))"
        )
    view.check()


# -- the tree --------------------------------------------------------------------------


def test_the_tree_is_used_by_keyboard_alone(view: PageOf) -> None:
    page = view.sign_in()
    page.keyboard.press("Tab")
    for _ in range(12):
        if page.evaluate("document.activeElement.getAttribute('role')") == "treeitem":
            break
        page.keyboard.press("Tab")
    assert focused(page).startswith("acme, own, tokens 0 to")
    item = page.locator("[role=treeitem]:focus")
    expect(item).to_have_attribute("aria-level", "1")
    expect(item).to_have_attribute("aria-selected", "true")
    expect(item).to_have_attribute("aria-expanded", "false")
    page.keyboard.press("ArrowRight")
    expect(item).to_have_attribute("aria-expanded", "true")
    expect(page.locator("[role=treeitem][aria-level='2']")).not_to_have_count(0)
    page.keyboard.press("ArrowRight")
    expect(page.locator("[role=treeitem]:focus")).to_have_attribute("aria-level", "2")
    page.keyboard.press("ArrowLeft")
    expect(item).to_have_attribute("aria-level", "1")
    page.keyboard.press("ArrowLeft")
    expect(item).to_have_attribute("aria-expanded", "false")
    expect(page.locator("[role=treeitem][aria-level='2']")).to_have_count(0)
    page.keyboard.press("ArrowDown")
    assert "globex, own" in focused(page)
    # The last row asks for the next page.
    num_before = rows(page).count()
    page.keyboard.press("End")
    expect(page.locator("[role=treeitem]:focus")).to_have_text("Show more")
    page.keyboard.press("Enter")
    expect(rows(page)).not_to_have_count(num_before)
    assert "globex, own" in focused(page)
    page.keyboard.press("Home")
    assert focused(page).startswith("acme, own")
    # Into the details and back.
    page.keyboard.press("Enter")
    expect(page.locator("#details")).to_be_focused()
    expect(page.locator("#details")).to_contain_text("You are the assistant of Acme")
    page.keyboard.press("Escape")
    assert focused(page).startswith("acme, own")
    view.check()


def test_the_focus_stays_where_it_is_when_an_answer_comes(view: PageOf) -> None:
    page = view.sign_in()
    details = page.locator("#details")
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route(re.compile(r"/cache/runs/[^/?]+$"), hold)

    def answer(hits: int, *, is_pin: bool) -> None:
        while not held:
            page.wait_for_timeout(10)
        route = held.pop()
        route.fulfill(json={**route.fetch().json(), "hits": hits, "is_pin": is_pin})
        expect(details).to_contain_text(f"{hits:,}, ")

    rows(page).first.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    expect(details.get_by_role("button", name="Pin")).to_be_focused()
    answer(4_242, is_pin=False)
    expect(details.get_by_role("button", name="Pin")).to_be_focused()
    page.keyboard.press("Escape")
    assert focused(page).startswith("acme, own")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    answer(5_353, is_pin=True)
    # The button that had the focus is another one now, in the same place.
    expect(details.get_by_role("button", name="Unpin")).to_be_focused()
    page.keyboard.press("Escape")
    assert focused(page).startswith("acme, own")
    view.check()


def test_what_is_open_and_chosen_stays_so_when_the_tree_is_loaded_anew(
    view: PageOf,
) -> None:
    page = view.sign_in()
    rows(page).first.focus()
    page.keyboard.press("ArrowRight")
    below = page.locator("[role=treeitem][aria-level='2']")
    expect(below).not_to_have_count(0)
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    last = page.locator("[role=treeitem]:focus")
    expect(last).to_have_attribute("aria-label", re.compile("^globex"))
    (num_rows, num_below, name) = (rows(page).count(), below.count(), focused(page))
    # A click on the button leaves the focus on it; what the reader did not touch stays.
    page.evaluate("document.getElementById('tree').firstElementChild.dataset.old = 'yes'")
    page.evaluate("document.getElementById('reload').click()")
    expect(page.locator("[data-old]")).to_have_count(0)
    assert (rows(page).count(), below.count()) == (num_rows, num_below)
    chosen = page.locator("[role=treeitem][aria-selected='true']")
    expect(chosen).to_have_count(1)
    expect(chosen).to_be_focused()
    assert focused(page).split(" hits")[0] == name.split(" hits")[0]
    view.check()


def test_what_is_opened_in_a_panel_stays_open_while_figures_come(view: PageOf) -> None:
    page = view.sign_in()
    summary = page.locator("#worth summary").first
    summary.focus()
    page.keyboard.press("Enter")
    opened = page.locator("#worth details").first
    expect(opened).to_have_attribute("open", "")
    page.wait_for_event("response", lambda answer: "/cache/worth" in answer.url)
    # The next one is asked for when what came has been shown.
    page.wait_for_event("request", lambda request: "/cache/figures" in request.url)
    expect(opened).to_have_attribute("open", "")
    expect(summary).to_be_focused()
    view.check()


def test_rows_say_how_runs_are_kept(view: PageOf) -> None:
    page = view.sign_in()
    with view.server.admin() as admin:
        [run, *_] = admin.get("/cache/runs?limit=1").json()["data"]
    assert run["domain"] == "acme"
    acme_row(page).click()
    details = page.locator("#details")
    for text in (
        f"tokens {run['start']} to {run['start'] + run['tokens']}",
        f"{run['tokens']} tokens, {run['blocks']} blocks",
        f"{run['hits']}, {run['forks']} went on differently",
        "until its blocks are needed",
    ):
        expect(details).to_contain_text(text)
    view.check()


def test_a_domain_is_searched_for(view: PageOf) -> None:
    page = view.sign_in()
    search(page, "domain", "glob")
    expect(page.locator("#found")).to_contain_text("runs found, and there may be more")
    expect(rows(page).first).to_contain_text("globex")
    assert acme_row(page).count() == 0
    search(page, "domain", "nobody")
    expect(page.locator("#found")).to_contain_text("0 runs found.")
    page.get_by_label("What to search for").fill("")
    expect(acme_row(page)).to_be_visible()
    view.check()


def test_a_prompt_is_searched_for_and_the_reason_is_seen(view: PageOf) -> None:
    page = view.sign_in()
    page.get_by_label("Search for", exact=True).select_option("prompt")
    page.get_by_label("Whose request").select_option("acme")
    search(page, "prompt", f"{RULES}What else?")
    expect(rows(page).first).to_contain_text(re.compile(r"agrees in \d+ of \d+"))
    body = {"tenant": "acme", "prompt": f"{RULES}What else?"}
    with view.server.admin() as admin:
        [known] = admin.post("/cache/lookup", json=body).json()["prompts"]
    assert known["miss"] == "diverged"
    expect(page.locator("#found")).to_contain_text(
        f"A request of acme would hit {known['hit_tokens']} of "
        f"{known['prompt_tokens']} tokens: {known['explanation']}."
    )
    page.get_by_label("Whose request").select_option("globex")
    search(page, "prompt", f"{RULES}What else?")
    expect(page.locator("#found")).to_contain_text("A request of globex would hit 0 of")
    search(page, "tokens", "1, 2, three")
    expect(page.locator("#said")).to_contain_text("whole numbers")
    view.check()


def test_the_latest_misses_have_reasons_where_the_server_keeps_them(view: PageOf) -> None:
    page = view.sign_in()
    with view.server.admin() as admin:
        views = admin.get("/cache/figures").json()["views"]
        for name in ("whatif", "worth"):
            if name not in views:
                expect(page.locator(f"#{name}")).to_have_text(
                    "This server does not have this figure."
                )
        if "misses" in views:
            [latest, *_] = admin.get("/cache/misses?limit=50").json()["data"]
            table = page.get_by_role("table", name="Latest misses with reasons")
            expect(table).to_contain_text(latest["reason"]["sentence"])
        else:
            expect(page.locator("#misses")).to_have_text(
                "This server does not have this figure."
            )
    view.check()


# -- what is done to a run -------------------------------------------------------------


def test_a_run_is_pinned_and_unpinned(view: PageOf) -> None:
    page = view.sign_in()
    details, said = page.locator("#details"), page.locator("#said")
    with view.server.admin() as admin:
        acme_row(page).click()
        details.get_by_role("button", name="Pin").click()
        expect(said).to_contain_text("Pinned: ")
        expect(acme_row(page)).to_contain_text("pinned")
        assert admin.get("/cache/stats").json()["num_pinned_blocks"] > 0
        details.get_by_role("button", name="Unpin").click()
        expect(said).to_contain_text("Unpinned: 0 blocks")
        assert admin.get("/cache/stats").json()["num_pinned_blocks"] == 0
    view.check()


def test_a_run_is_approved_and_withdrawn(view: PageOf) -> None:
    page = view.sign_in()
    details, said = page.locator("#details"), page.locator("#said")
    dialog = page.get_by_role("dialog")
    with view.server.admin() as admin:
        acme_row(page).click()
        details.get_by_role("button", name="Approve").click()
        dialog.get_by_label("Label").fill(HOSTILE_LABEL)
        dialog.get_by_label("Pinned").check()
        dialog.get_by_role("button", name="Approve").click()
        expect(said).to_contain_text(f"as {HOSTILE_LABEL}.")
        [approval] = admin.get("/cache/approvals").json()["approvals"]
        assert (approval["label"], approval["pinned"]) == (HOSTILE_LABEL, True)
        assert approval["domain"] == "acme"
        rows(page).filter(has_text=HOSTILE_LABEL).first.click()
        details.get_by_role("button", name="Withdraw").click()
        dialog.get_by_role("button", name="Cancel").click()
        assert len(admin.get("/cache/approvals").json()["approvals"]) == 1
        details.get_by_role("button", name="Withdraw").click()
        dialog.get_by_role("button", name="Withdraw").click()
        expect(said).to_contain_text("Withdrew")
        assert admin.get("/cache/approvals").json()["approvals"] == []
    view.check()


# -- what is hostile -------------------------------------------------------------------


def test_hostile_text_stays_text(view: PageOf) -> None:
    page = view.sign_in()
    search(page, "prompt", HOSTILE)
    row = rows(page).first
    expect(row).to_contain_text("<script>document.title=")
    row.click()
    page.keyboard.press("Enter")
    expect(page.locator("#details pre")).to_contain_text("<img src=x onerror=alert(1)>")
    search(page, "domain", HOSTILE[:40])
    assert page.title() == "Prefold"
    assert page.locator("main script, main img").count() == 0
    view.check()


def test_the_policy_lets_no_other_script_run(view: PageOf) -> None:
    page = view.open()
    answer = page.request.get(f"{view.server.ready['admin_url']}/ui")
    policy = answer.headers["content-security-policy"]
    for part in ("default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"):
        assert part in policy
    assert "unsafe" not in policy
    failed = page.evaluate(
        "() => { try { document.body.innerHTML = '<b>x</b>'; return null; }"
        " catch (error) { return error.name; } }"
    )
    assert failed == "TypeError"
    assert any("TrustedHTML" in text for text in view.said)


# -- how it is seen --------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1280])
def test_it_fits_and_can_be_read(
    scheme: Literal["light", "dark"], width: int, server: ServerProcess, browser: Browser
) -> None:
    view = PageOf(server, browser, width=width, scheme=scheme)
    page = view.sign_in()
    rows(page).first.click()
    expect(page.locator("#details")).to_contain_text("Position")
    # Nothing is wider than the window.
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    contrasts = page.evaluate(_CONTRASTS)
    assert len(contrasts) > 50
    poor = {text: ratio for text, ratio in contrasts if ratio < 4.5}
    assert poor == {}
    view.check()
    view.close()


#: Every text that is seen, with the contrast to what is behind it, as WCAG counts it.
_CONTRASTS = """() => {
  const canvas = document.createElement('canvas')
    .getContext('2d', {willReadFrequently: true});
  const rgb = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => {
    const linear = [r, g, b].map((v) => v / 255)
      .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = rgb(getComputedStyle(at).backgroundColor);
      if (color[3] === 255) return color;
    }
    return [255, 255, 255, 255];
  };
  const found = [];
  for (const element of document.querySelectorAll('body *:not(.said)')) {
    const text = [...element.childNodes].filter((node) => node.nodeType === 3)
      .map((node) => node.textContent.trim()).join('');
    if (!text || !element.checkVisibility() || element.closest('svg, .sr, .skip, select')) {
      continue;
    }
    const one = light(rgb(getComputedStyle(element).color));
    const other = light(ground(element));
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    found.push([text, ratio]);
  }
  return found;
}"""


def test_what_is_behind_a_reader_of_screens_has_names(view: PageOf) -> None:
    page = view.sign_in()
    unnamed = page.evaluate(
        "() => [...document.querySelectorAll('button, input, select, summary')]"
        ".filter((it) => it.checkVisibility() && !(it.textContent.trim()"
        " || it.labels?.length || it.getAttribute('aria-label')))"
        ".map((it) => it.outerHTML)"
    )
    assert unnamed == []
    assert page.evaluate("document.documentElement.lang") == "en"
    view.check()


# -- in the end, what others have looked at is dropped ---------------------------------


def test_a_run_is_invalidated_by_keyboard(view: PageOf) -> None:
    page = view.sign_in()
    details, dialog = page.locator("#details"), page.get_by_role("dialog")
    body = {"tenant": "acme", "prompt": f"{RULES}Question 1: which parcel is it?"}
    with view.server.admin() as admin:
        [before] = admin.post("/cache/lookup", json=body).json()["prompts"]
        assert before["hit_tokens"] > 40
        rows(page).first.focus()
        assert focused(page).startswith("acme, own, tokens 0 to")
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        expect(details.get_by_role("button", name="Invalidate")).to_be_focused()
        page.keyboard.press("Enter")
        expect(dialog).to_contain_text("will not be found any more")
        page.keyboard.press("Enter")
        expect(page.locator("#said")).to_contain_text(re.compile(r"Dropped \d+ blocks"))
        assert focused(page).startswith("globex, own")
        expect(acme_row(page)).to_have_count(0)
        [after] = admin.post("/cache/lookup", json=body).json()["prompts"]
        assert after["hit_tokens"] == 0
    view.check()
