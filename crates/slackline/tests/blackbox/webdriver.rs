//! A headless Chromium, driven through Debian's `chromedriver` by the WebDriver protocol (W3C
//! Recommendation 2018).

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::eventually::{eventually, found_within};

/// The key under which WebDriver names an element (section 11).
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// How long a page is given to show something: a model is fitted within it on a busy machine.
const PATIENCE_S: u64 = 60;

pub(crate) struct Browser {
    driver: Child,
    agent: ureq::Agent,
    session: String,
    width: u32,
    /// Pixels of the screen in a pixel of the page.
    ratio: u32,
}

impl Browser {
    /// `None` where there is no chromedriver.
    pub(crate) fn start(width: u32, is_dark: bool) -> Option<Self> {
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let driver = Command::new("chromedriver")
            .arg(format!("--port={port}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .build();
        let mut browser = Self {
            driver,
            agent: agent.into(),
            session: format!("http://127.0.0.1:{port}/session"),
            width,
            ratio: 1,
        };
        let mut arguments = vec![
            "--headless=new".to_owned(),
            // The tests run as root, whose processes Chromium's sandbox does not take.
            "--no-sandbox".into(),
            "--disable-gpu".into(),
            "--hide-scrollbars".into(),
            format!("--window-size={width},1000"),
        ];
        if is_dark {
            arguments.push("--blink-settings=preferredColorScheme=0".into());
        }
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": { "args": arguments },
            "goog:loggingPrefs": { "browser": "ALL" },
            "unhandledPromptBehavior": "accept",
        } } });
        let answer = found_within(PATIENCE_S, || browser.ask("POST", "", &wanted));
        let id = answer["sessionId"].as_str().unwrap().to_owned();
        browser.session = format!("{}/{id}", browser.session);
        // A window has a least width; a screen has not.
        browser.screen(width, 1000);
        Some(browser)
    }

    /// Another width of the screen, and another colour scheme of the system.
    pub(crate) fn look(&mut self, width: u32, is_dark: bool) {
        self.width = width;
        self.screen(width, 1000);
        let scheme = if is_dark { "dark" } else { "light" };
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.devtools(
            "Emulation.setEmulatedMedia",
            json!({ "features": features }),
        );
    }

    /// A screen with so many pixels in a pixel of the page, both ways.
    pub(crate) fn sharpen(&mut self, ratio: u32) {
        self.ratio = ratio;
        self.screen(self.width, 1000);
    }

    /// What a command of the Chrome DevTools Protocol answers.
    fn devtools(&self, command: &str, params: Value) -> Value {
        let body = json!({ "cmd": command, "params": params });
        self.ask("POST", "/goog/cdp/execute", &body).unwrap()
    }

    /// CPU time of the page's main thread in its tasks so far, in seconds.
    pub(crate) fn worked_s(&self) -> f64 {
        self.devtools("Performance.enable", json!({ "timeDomain": "threadTicks" }));
        let metrics = self.devtools("Performance.getMetrics", json!({}));
        let mut metrics = metrics["metrics"].as_array().unwrap().iter();
        let found = metrics.find(|it| it["name"] == "TaskDuration").unwrap();
        found["value"].as_f64().unwrap()
    }

    /// A screen of that size.
    fn screen(&self, width: u32, height: u64) {
        let metrics = json!({
            "width": width, "height": height, "deviceScaleFactor": self.ratio, "mobile": false,
        });
        self.devtools("Emulation.setDeviceMetricsOverride", metrics);
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Result<Value, String> {
        let request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.session))
            .body(if method == "GET" {
                String::new()
            } else {
                body.to_string()
            })
            .unwrap();
        let mut response = self.agent.run(request).map_err(|error| error.to_string())?;
        let status = response.status();
        let body = response.body_mut().with_config().limit(1 << 28);
        let answer: Value = body.read_json().map_err(|error| error.to_string())?;
        if status.is_success() {
            Ok(answer["value"].clone())
        } else {
            Err(answer["value"]["message"].to_string())
        }
    }

    pub(crate) fn open(&self, url: &str) {
        self.ask("POST", "/url", &json!({ "url": url })).unwrap();
    }

    /// Another tab, which is the present one from then on.
    pub(crate) fn tab(&self) {
        let new = self.ask("POST", "/window/new", &json!({ "type": "tab" }));
        let handle = json!({ "handle": new.unwrap()["handle"] });
        self.ask("POST", "/window", &handle).unwrap();
    }

    /// What a script returns.
    pub(crate) fn run(&self, script: &str) -> Value {
        self.ask(
            "POST",
            "/execute/sync",
            &json!({ "script": script, "args": [] }),
        )
        .unwrap()
    }

    /// Waits until a script's expression is true.
    pub(crate) fn wait(&self, expression: &str) {
        let script = format!("return Boolean({expression})");
        let what = || {
            let page = self.run("return document.body.innerText");
            format!("waited for {expression} on a page that says: {page}")
        };
        eventually(PATIENCE_S, || self.run(&script) == json!(true), what);
    }

    fn find(&self, selector: &str) -> Result<String, String> {
        let found = self.ask(
            "POST",
            "/element",
            &json!({ "using": "css selector", "value": selector }),
        )?;
        Ok(found[ELEMENT].as_str().unwrap().to_owned())
    }

    /// Clicks as a person does: what is hidden or covered cannot be clicked. A live part may be
    /// replaced meanwhile.
    pub(crate) fn click(&self, selector: &str) {
        found_within(PATIENCE_S, || {
            let clicked = self.find(selector).and_then(|element| {
                self.ask("POST", &format!("/element/{element}/click"), &json!({}))
            });
            clicked.map_err(|error| format!("{selector}: {error}"))
        });
    }

    /// Drags the mouse from one place of an element to another: shares of its width and height. A
    /// drag to where it began is a click.
    pub(crate) fn drag(&self, selector: &str, from: [f64; 2], to: [f64; 2]) {
        let at = self.run(&format!(
            "const it = document.querySelector({}); it.scrollIntoView({{ block: 'center' }}); const box = \
             it.getBoundingClientRect(); return {}.map(([x, y]) => [box.left + x * box.width, box.top + y * \
             box.height].map(Math.round))",
            json!(selector),
            json!([from, to])
        ));
        let moved = |at: &Value| json!({ "type": "pointerMove", "origin": "viewport", "duration": 50, "x": at[0], "y": at[1] });
        let button = |it: &str| json!({ "type": it, "button": 0 });
        let mouse = json!({ "type": "pointer", "id": "mouse", "parameters": { "pointerType": "mouse" }, "actions": [
            moved(&at[0]), button("pointerDown"), moved(&at[1]), button("pointerUp"),
        ] });
        let body = json!({ "actions": [mouse] });
        self.ask("POST", "/actions", &body).unwrap();
    }

    /// Puts text into a field, as typing does.
    pub(crate) fn fill(&self, selector: &str, text: &str) {
        self.run(&format!(
            "const field = document.querySelector({}); field.value = {}; \
             field.dispatchEvent(new Event('input', {{ bubbles: true }}));",
            json!(selector),
            json!(text)
        ));
    }

    /// The whole page as a PNG in that file.
    pub(crate) fn picture(&self, file: &Path) {
        self.top(file, 6000);
    }

    /// The top of the page, so many pixels at the most.
    pub(crate) fn top(&self, file: &Path, most: u64) {
        self.shoot(file, "/screenshot", most);
    }

    /// One element of the page.
    pub(crate) fn part(&self, selector: &str, file: &Path) {
        let element = self.find(selector).unwrap();
        self.shoot(file, &format!("/element/{element}/screenshot"), 6000);
    }

    fn shoot(&self, file: &Path, path: &str, most: u64) {
        // The window grows to the page, so that nothing is below its edge.
        let height = self
            .run("return document.documentElement.scrollHeight")
            .as_u64()
            .unwrap_or(1000);
        self.screen(self.width, height.min(most));
        std::thread::sleep(Duration::from_millis(500));
        let picture = self.ask("GET", path, &json!({})).unwrap();
        self.screen(self.width, 1000);
        std::fs::write(file, base64(picture.as_str().unwrap())).unwrap();
    }

    /// What went wrong in the pages' scripts since the last question.
    pub(crate) fn errors(&self) -> Vec<String> {
        let log = self
            .ask("POST", "/se/log", &json!({ "type": "browser" }))
            .unwrap();
        let severe = log
            .as_array()
            .unwrap()
            .iter()
            .filter(|entry| entry["level"] == "SEVERE");
        severe.map(|entry| entry["message"].to_string()).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.ask("DELETE", "", &json!({}));
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

/// Bytes of a base64 text (RFC 4648, section 4).
fn base64(text: &str) -> Vec<u8> {
    let value = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0_u32, 0);
    for six in text.bytes().filter_map(value) {
        bits = (bits << 6 | u32::from(six)) & 0xffff;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from(bits >> count & 0xff).unwrap());
        }
    }
    bytes
}
