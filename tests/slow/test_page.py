"""The page in a real browser, at a real service, while a real training goes on."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from custom_models.configs import LLMPolicyConfig
from rl_service.policies.registry import PolicyRegistry
from tests.conftest import WriteTestBundle
from tests.support.rays import command_environment
from tests.support.services import TOKEN, Start, start, wait_until, write_bundle_once
from tests.support.tuning import write_tuning_file

__all__ = ["start", "write_bundle_once"]

CHROMIUM = "/usr/bin/chromium"
SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"
PATIENCE_MS = 60_000
SERIOUS = ("serious", "critical")
LEARNS = (
    *("-e", "CartPole-v1", "-m", "mlp", "--set", "resources.num_env_runners=0"),
    *("--set", "algorithm.train_batch_size=256", "--set", "algorithm.minibatch_size=64"),
    *("--set", "tracking.tensorboard=false"),
)

expect.set_options(timeout=PATIENCE_MS)
pytestmark = pytest.mark.timeout(600)


class Site(NamedTuple):
    """A service with a page."""

    url: str
    output_dir: Path


def command(folder: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Starts `rl-service`, whose output goes to a file in the folder."""
    with (folder / "output.txt").open("a") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "rl_service.cli", *arguments],
            cwd=folder,
            env=command_environment(PYTHONUNBUFFERED="1", **environment),
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )


@pytest.fixture(scope="module")
def output_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two seeds that have ended, an experiment, and a training that goes on."""
    folder = tmp_path_factory.mktemp("trainings")
    short = ("--set", "evaluation.final_num_episodes=1", "-o", str(folder))
    for seed in (1, 2):
        done = command(folder, "train", *LEARNS, *short, "-ne", "3", "--seed", str(seed))
        assert done.wait(300) == 0, (folder / "output.txt").read_text()
    file = write_tuning_file(folder / "small.yaml")
    tune = command(folder, "tune", str(file))
    assert tune.wait(300) == 0, (folder / "output.txt").read_text()
    going_on = command(folder, "train", *LEARNS, "-ne", "100000", "--seed", "3", "-o", str(folder))
    wait_until(lambda: len(list(folder.glob("runs/mlp_ppo*/*/progress.jsonl"))) == 3, 120.0)
    yield folder
    going_on.send_signal(signal.SIGINT)
    going_on.wait(120)


@pytest.fixture(scope="module")
def site(start: Start, output_dir: Path, write_bundle_once: WriteTestBundle) -> Site:
    folder = start.folder
    registry = PolicyRegistry(str(folder / "registry"))
    for version in (1, 2):
        write_bundle_once(folder / f"v{version}", seed=version)
        registry.register(folder / f"v{version}", "cartpole")
    registry.promote("cartpole", 2)
    model = LLMPolicyConfig(n_layer=1, n_head=2, n_embd=16, task="Keep the pole up.\n")
    write_bundle_once(folder / "reader", model=model)
    write_bundle_once(folder / "taxi", "Taxi-v3", max_episode_steps=1000)
    arguments = ("zoo:lunarlander", "cartpole", str(folder / "reader"), str(folder / "taxi"))
    _, url, _ = start(*arguments, "--registry", registry.root, "--runs", str(output_dir))
    return Site(url, output_dir)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


Visit = Callable[..., Page]


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    """Opens pages, which must stay free of errors and of requests to others."""
    problems: list[str] = []

    def open_page(url: str, theme: str, width: int = 1280) -> Page:
        context = browser.new_context(
            color_scheme=theme,  # type: ignore[arg-type]
            viewport={"width": width, "height": 900},
            bypass_csp=True,  # for axe, which is injected
        )
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", lambda said: is_error(said) and problems.append(said.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        host = re.match(r"(?:http|ws)://[^/]+", url)
        assert host is not None
        own = (host[0], "data:", "blob:")
        page.on(
            "request", lambda sent: sent.url.startswith(own) or problems.append(f"asks {sent.url}")
        )
        page.goto(url)
        return page

    yield open_page
    for context in browser.contexts:
        context.close()
    assert problems == []


def is_error(said: ConsoleMessage) -> bool:
    """Chromium reports each refusal; that of a request without a token is how the page asks."""
    return said.type == "error" and "401 (Unauthorized)" not in said.text


THEMES = pytest.mark.parametrize("theme", ["light", "dark"])


def check(page: Page, name: str, theme: str) -> None:
    """Keeps a screenshot, and finds no serious fault of accessibility."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}-{theme}.png", full_page=True)
    found = [
        f"{each['id']}: {each['help']}: {each['nodes'][0]['html']}"
        for each in Axe().run(page).response["violations"]
        if each["impact"] in SERIOUS
    ]
    assert found == []


def fact(page: Page, name: str) -> Any:
    return page.locator(".facts div", has=page.get_by_text(name, exact=True)).locator("dd")


def step_of(page: Page) -> int:
    return int(fact(page, "Step").inner_text() or -1)


@THEMES
def test_runs_are_shown_and_compared_while_one_goes_on(
    site: Site, visit: Visit, theme: str
) -> None:
    page = visit(f"{site.url}/#/runs", theme)
    rows = page.get_by_role("region", name="Runs").locator("tbody tr")
    expect(rows).to_have_count(3)
    running = rows.filter(has_text="running")
    expect(running).to_have_count(1)
    before = running.inner_text()
    expect(page.locator("canvas")).to_be_visible()
    expect(running).not_to_have_text(before, use_inner_text=True)  # it goes on by itself
    page.get_by_role("button", name="Clear selection").click()
    for row in rows.filter(has_text="finished").all():
        row.get_by_role("checkbox").check()
    legend = page.locator("ul.legend li")
    expect(legend).to_have_count(1)
    expect(legend).to_contain_text("2 seeds")
    page.get_by_label("over").select_option("time")
    page.get_by_label("Metric").select_option("policy_loss")
    expect(page.locator("[aria-label^='Policy loss']")).to_be_visible()
    page.get_by_label("Filter runs").fill("cartpole running")
    expect(rows).to_have_count(1)
    page.get_by_label("Filter runs").fill("")
    check(page, "runs", theme)


@THEMES
def test_an_experiment_shows_its_trials_and_the_best(site: Site, visit: Visit, theme: str) -> None:
    page = visit(f"{site.url}/#/experiments", theme)
    page.get_by_role("region", name="Experiments").get_by_role("link").first.click()
    trials = page.get_by_role("region", name="Trials").locator("tbody tr")
    expect(trials).to_have_count(2)
    expect(page.locator("tr.best")).to_have_count(1)
    expect(page.locator("svg.parallel polyline")).to_have_count(2)
    expect(page.locator("svg.parallel")).to_contain_text("algorithm.actor_lr")
    check(page, "experiment", theme)


@THEMES
def test_a_policy_shows_its_card_its_versions_and_a_video(
    site: Site, visit: Visit, theme: str
) -> None:
    page = visit(f"{site.url}/#/policies", theme)
    page.get_by_role("link", name="cartpole", exact=True).click()
    versions = page.get_by_role("region", name="Versions").locator("tbody tr")
    expect(versions).to_have_count(2)
    expect(versions.filter(has_text="production")).to_contain_text("served")
    page.goto(f"{site.url}/#/policies/lunarlander")
    expect(page.locator(".card")).to_contain_text("gpt2_critic on LunarLander-v3")
    page.get_by_role("button", name="Record an episode").click()
    page.wait_for_function("document.querySelector('video')?.videoWidth > 0")
    check(page, "policy", theme)


@THEMES
def test_a_policy_acts_before_ones_eyes_and_hands_over(
    site: Site, visit: Visit, theme: str
) -> None:
    page = visit(f"{site.url}/#/play/lunarlander", theme)
    page.get_by_label("Seed").fill("7")
    page.get_by_role("button", name="Start").click()
    wait_until(lambda: step_of(page) > 20)
    assert page.locator(".stage img").evaluate("image => image.naturalWidth") == 600
    page.get_by_role("button", name="Pause").click()
    page.wait_for_timeout(500)
    paused = step_of(page)
    page.get_by_role("button", name="Step").click()
    wait_until(lambda: step_of(page) == paused + 1)
    shares = page.locator(".bars .value").all_inner_texts()
    total = sum(float(each.rstrip(" %")) for each in shares)
    assert len(shares) == 4 and 98.0 < total < 102.0
    entry = page.locator("#entry-0")
    seen, chosen = entry.input_value(), page.locator(".bars .value").all_inner_texts()
    entry.fill("-2")
    expect(page.get_by_text(re.compile("^(Action|The action)"))).to_be_visible()
    assert page.locator(".bars .value").all_inner_texts() != chosen
    assert step_of(page) == paused + 1  # nothing has moved
    page.get_by_role("button", name="Back to the real observation").click()
    assert entry.input_value() == seen
    page.get_by_label("Take over").check()
    page.keyboard.press("ArrowUp")
    wait_until(lambda: step_of(page) == paused + 2)
    with page.expect_request("**/step") as sent:
        page.keyboard.press("ArrowLeft")
    assert sent.value.post_data_json == {"action": 1}
    page.get_by_label("Take over").uncheck()
    with page.expect_response("**/reset") as first:
        page.get_by_role("button", name="Reset").click()
    with page.expect_response("**/reset") as second:
        page.get_by_role("button", name="Reset").click()
    one, other = first.value.json(), second.value.json()
    assert one["observation"] == other["observation"]
    check(page, "play", theme)
    with page.expect_request(lambda asked: asked.method == "DELETE"):
        page.get_by_role("link", name="Try it").click()


@THEMES
def test_what_a_language_model_reads_stands_beside_the_picture(
    site: Site, visit: Visit, theme: str
) -> None:
    page = visit(f"{site.url}/#/play/reader", theme)
    page.get_by_role("button", name="Start").click()
    expect(page.locator("pre", has_text="Keep the pole up.")).to_be_visible()
    check(page, "prompt", theme)


@THEMES
def test_a_request_can_be_tried_and_taken_along(site: Site, visit: Visit, theme: str) -> None:
    page = visit(f"{site.url}/#/try/lunarlander", theme)
    page.locator("#entry-1").fill("0.5")
    page.get_by_role("button", name="Act").click()
    answer = page.get_by_role("status").filter(has_text="log_prob")
    reply = json.loads(answer.inner_text().rpartition("\n")[0])
    line = page.get_by_label("The request as a curl command").inner_text()
    again = subprocess.run(line, shell=True, capture_output=True, check=True, text=True)
    assert json.loads(again.stdout)["action"] == reply["action"]
    assert json.loads(again.stdout)["log_prob"] == pytest.approx(reply["log_prob"])
    check(page, "try", theme)


def test_a_policy_of_another_space_is_played_and_tried(site: Site, visit: Visit) -> None:
    """Taxi-v3 observes a number, and forbids actions."""
    page = visit(f"{site.url}/#/play/taxi", "light")
    page.get_by_role("button", name="Start").click()
    wait_until(lambda: step_of(page) > 2)
    page.get_by_role("button", name="Pause").click()
    shares = page.locator(".bars .value").all_inner_texts()
    assert len(shares) == 6 and "0.0 %" in shares
    expect(page.locator("#entry-0")).to_have_count(0)
    check(page, "play-taxi", "light")
    page = visit(f"{site.url}/#/policies/taxi", "light")
    expect(page.get_by_text("500 choices, 0 to 499")).to_be_visible()
    page = visit(f"{site.url}/#/try/taxi", "light")
    page.get_by_label("Observation as JSON").fill("7")
    page.get_by_role("button", name="Act").click()
    answer = page.get_by_role("status").filter(has_text="log_prob")
    assert json.loads(answer.inner_text().rpartition("\n")[0])["action"] in range(6)
    page.get_by_label("Observation as JSON").fill("{")
    page.get_by_role("button", name="Act").click()
    expect(page.get_by_text("Expected JSON")).to_be_visible()
    check(page, "try-taxi", "light")


@pytest.mark.parametrize("view", ["runs", "policies/lunarlander", "play/lunarlander"])
def test_it_fits_on_a_phone(site: Site, visit: Visit, view: str) -> None:
    page = visit(f"{site.url}/#/{view}", "light", width=360)
    expect(page.get_by_role("heading", level=1)).not_to_have_text("rl-service")
    page.wait_for_load_state("networkidle") if view != "runs" else page.wait_for_timeout(1000)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    check(page, f"phone-{view.partition('/')[0]}", "light")


def test_the_keyboard_reaches_what_the_mouse_does(site: Site, visit: Visit) -> None:
    page = visit(f"{site.url}/#/policies/lunarlander", "light")
    expect(page.locator(".card")).to_be_visible()
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate("document.activeElement.ariaLabel ?? document.activeElement.innerText")
        )
    assert {"Runs", "Policies", "Dark theme", "Play", "Try it", "Record an episode"} <= reached


def test_a_play_that_is_not_there_is_said(site: Site) -> None:
    opened = httpx.post(f"{site.url}/v1/play", json={"policy": "cartpole"}, timeout=120.0).json()
    step = f"{site.url}/v1/play/{opened['play']}/step"
    assert httpx.post(step, json={"action": 7}).status_code == 422
    assert httpx.delete(step.removesuffix("/step")).status_code == 200
    gone = httpx.post(step, json={"action": None})
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "unknown_play")


def test_the_runs_of_this_machine_are_shown_without_a_service(
    output_dir: Path, visit: Visit, tmp_path: Path
) -> None:
    output = tmp_path / "output.txt"
    arguments = ("ui", str(output_dir), "--port", "0")
    process = command(tmp_path, *arguments, RL_SERVICE_TOKENS=f"me: {TOKEN}")
    try:
        wait_until(lambda: "Ctrl-C" in output.read_text(), 120.0)
        [url] = re.findall(r"http://\S+", output.read_text())
        page = visit(url, "light")
        page.get_by_label("Token").fill("wrong")
        page.get_by_role("button", name="Use this token").click()
        expect(page.get_by_text("did not accept this token")).to_be_visible()
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Use this token").click()
        rows = page.get_by_role("region", name="Runs").locator("tbody tr")
        expect(rows).to_have_count(3)
        page.get_by_role("link", name="Policies").click()
        # What the trainings have registered, and the example.
        expect(page.get_by_role("region", name="Policies").locator("tbody tr")).to_have_count(2)
    finally:
        process.send_signal(signal.SIGINT)
        started = time.monotonic()
        assert process.wait(60) in (0, 130), output.read_text()
        assert time.monotonic() - started < 30.0
