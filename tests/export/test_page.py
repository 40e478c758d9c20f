"""Tests of the page at `GET /` in a browser: Chromium, driven by Selenium.

The tests need `apt-get install chromium chromium-driver` and `pip install selenium`.
"""

import json
import shlex
import shutil
from urllib.parse import urlsplit

import pytest
import tensorflow as tf

from export.server.config import ServerConfig
from export.server.model_server import ModelServer
from tests.export.serving_toys import WORDS, export_toy
from tests.export.test_serve_models import entry, write

pytestmark = pytest.mark.slow
PROGRAMS = [shutil.which(name) for name in ("chromium", "chromedriver")]
webdriver = pytest.importorskip("selenium.webdriver", reason="needs the package selenium")
if not all(PROGRAMS):
    pytest.skip("needs chromium and chromedriver on the path", allow_module_level=True)

from selenium.common.exceptions import WebDriverException  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import Select, WebDriverWait  # noqa: E402

PHONE = 390  # CSS pixels
NUMBERS = tf.TensorSpec([None], tf.float32)


@tf.function(input_signature=[WORDS])
def classify(text):
    sad = tf.cast(tf.strings.regex_full_match(text, ".*sad.*"), tf.float32)
    classes = tf.tile([["bad", "<b>good</b>"]], [tf.size(text), 1])
    return {"classes": classes, "probabilities": tf.stack([0.1 + 0.8 * sad, 0.9 - 0.8 * sad], 1)}


@tf.function(input_signature=[WORDS, WORDS])
def read(question, context):
    """Returns the context's second character as the answer, or "" without a question mark."""
    asked = tf.strings.regex_full_match(question, r".*\?")
    answer = tf.strings.substr(context, 1, 1, unit="UTF8_CHAR")
    return {
        "answer": tf.where(asked, answer, ""),
        "start": tf.cast(asked, tf.int32),
        "end": 2 * tf.cast(asked, tf.int32),
        "probability": 0.5 * tf.ones_like(asked, tf.float32),
    }


@tf.function(input_signature=[WORDS, NUMBERS])
def complete(text, temperature):
    more = tf.strings.as_string(temperature, precision=1)
    words = tf.strings.join([tf.strings.join([" and"] * 200), " ", more])
    return {"completion": words, "log_prob": -temperature}


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Yields the page's address on a server with four models."""
    folder = tmp_path_factory.mktemp("models")
    export_toy(folder / "translator", 1)
    for function in (classify, read, complete):
        toy = tf.Module()
        toy.serve = function
        path = folder / function.python_function.__name__ / "1"
        tf.saved_model.save(toy, str(path), signatures={"serving_default": function})
    names = ("translator", "classify", "read", "complete")
    file = write(folder / "models.config", *(entry(name, folder / name) for name in names))
    with ModelServer(ServerConfig(model_config_file=file, rest_port=0, grpc_port=0)) as server:
        yield f"http://127.0.0.1:{server.rest_port}/"


@pytest.fixture(scope="module")
def browser():
    options = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.binary_location, driver = PROGRAMS
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield opened
    opened.quit()


class Page:
    """Page object of the demo page, which is open in a browser."""

    def __init__(self, browser, address: str):
        self.browser = browser
        browser.get(address)
        self.wait(lambda _: self.at("input-text").is_displayed())

    def at(self, name: str):
        return self.browser.find_element(By.ID, name)

    def wait(self, until) -> None:
        WebDriverWait(self.browser, 20, 0.05, ignored_exceptions=[WebDriverException]).until(until)

    def answered(self) -> tuple[str, str]:
        """Waits for an answer or an error; returns the texts of the status line and the answer."""

        def done(_):
            said = self.at("state").text
            return self.at("ask").is_enabled() and (said or self.at("answer").text)

        self.wait(done)
        return self.at("state").text, self.at("answer").text

    def ask(self, model: str, **fields: str) -> str:
        """Enters texts, clicks the button, asserts that no error appears; returns the answer."""
        Select(self.at("model")).select_by_visible_text(model)
        for name, text in fields.items():
            self.wait(lambda _, name=name: self.at(f"input-{name}").is_displayed())
            self.at(f"input-{name}").clear()
            self.at(f"input-{name}").send_keys(text)
        self.at("ask").click()
        state, answer = self.answered()
        assert state == ""
        return answer


@pytest.fixture
def page(browser, address) -> Page:
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    return Page(browser, address)


def test_the_version_an_example_and_its_curl_command(page, address):
    assert page.at("version").text == "translator, version 1"
    text = page.at("input-text")
    assert text.get_attribute("value") == "A dog is running."
    text.send_keys("a dog's")  # replaces the example
    *command, url = shlex.split(page.at("curl").text)
    body = {"instances": [{"text": "a dog's"}]}
    assert command[:2] == ["curl", "-d"] and json.loads(command[2]) == body
    assert url == f"{address}v1/models/translator:predict"


def test_a_translation(page):
    assert page.ask("translator", text="a <i>dog</i>") == (
        "v1:A <I>DOG</I>  (-1.20)\nv1:A <I>DOG</I>?  (-3.40)"
    )


def test_classes_likeliest_first_with_their_bars(page):
    assert page.ask("classify", text="a fine film") == "<b>good</b> 90.0 %\nbad 10.0 %"
    assert page.ask("classify", text="a sad film") == "bad 90.0 %\n<b>good</b> 10.0 %"
    widths = [bar.size["width"] for bar in page.browser.find_elements(By.CLASS_NAME, "bar")]
    assert widths[0] == pytest.approx(9 * widths[1], rel=0.01)


def test_an_answer_is_marked_in_the_context(page):
    context = "aö, b"
    assert page.ask("read", question="which?", context=context) == f"{context}\nprobability 0.500"
    [mark] = page.browser.find_elements(By.TAG_NAME, "mark")
    assert mark.text == "ö"
    answer = page.ask("read", question="none", context=context)
    assert answer == f"{context}\nNo answer; probability 0.500"
    assert not page.browser.find_elements(By.TAG_NAME, "mark")


def test_a_text_goes_on_by_its_settings(page):
    answer = page.ask("complete", text="You", temperature="0.5")
    assert answer == "You" + " and" * 200 + " 0.5"


def test_an_error_is_a_sentence_and_the_next_question_is_answered(page):
    text = page.at("input-text")
    text.send_keys("FAIL", Keys.CONTROL, Keys.ENTER)
    state, answer = page.answered()
    assert "a row says FAIL" in state and not answer
    assert page.at("state").get_attribute("class") == "error"
    assert page.ask("translator", text="dog").startswith("v1:DOG ")
    assert page.at("state").get_attribute("class") == ""


def test_keys_alone_do(page):
    def press(*keys):
        webdriver.ActionChains(page.browser).send_keys(*keys).perform()

    def hold(held, key):
        keys = webdriver.ActionChains(page.browser)
        keys.key_down(held).send_keys(key).key_up(held).perform()

    def focused() -> str:
        return page.browser.switch_to.active_element.get_attribute("id")

    page.wait(lambda _: focused() == "input-text")
    press("dog", Keys.TAB)
    assert focused() == "ask"
    press(Keys.ENTER)
    assert page.answered()[1].startswith("v1:DOG ")
    for _ in range(3):
        if focused() != "model":
            hold(Keys.SHIFT, Keys.TAB)
    assert focused() == "model"
    press("cl")  # selects the model whose name begins with "cl"
    page.wait(lambda _: focused() == "input-text")
    press("a sad film")
    hold(Keys.CONTROL, Keys.ENTER)
    assert page.answered()[1].startswith("bad 90.0 %")


@pytest.mark.parametrize("model", ["translator", "classify", "read", "complete"])
def test_it_fits_a_phone(page, model):
    size = {"width": PHONE, "height": 800, "deviceScaleFactor": 2, "mobile": True}
    page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    long = "Donaudampfschifffahrt" * 20
    fields = {"text": long}
    if model == "read":
        fields = {"question": "which?", "context": long}
    page.ask(model, **fields)
    width = "return [window.innerWidth, document.documentElement.scrollWidth]"
    assert page.browser.execute_script(width) == [PHONE, PHONE]


def test_it_asks_no_other_host(page, address):
    page.browser.get_log("performance")
    page.browser.get_log("browser")
    page.browser.get(address)
    page.ask("translator", text="dog")
    events = [
        json.loads(line["message"])["message"] for line in page.browser.get_log("performance")
    ]
    asked = [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]
    assert f"{address}v1/models/translator:predict" in asked
    hosts = {urlsplit(url).netloc for url in asked if not url.startswith("data:")}
    assert hosts == {urlsplit(address).netloc}
    assert page.browser.get_log("browser") == []  # neither errors nor blocked requests
