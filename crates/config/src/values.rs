//! Parsers of settings with special formats.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rules::{Priority, RuleMatching, UnknownLevel};
use yaml::settings::{Entry, Node, Problem};

use super::model::{CaptureMode, Config, DropAction, FalcoEngine, Selection};

/// Parses `syscall_event_drops.actions`. As in Falco, `ignore` excludes other actions.
pub(crate) fn drop_actions(config: &mut Config, node: &Node) -> Result<(), Problem> {
    let mut actions = Vec::new();
    let mut ignores = false;
    for word in node.list()? {
        actions.push(match word.text()? {
            "alert" => DropAction::Alert,
            "exit" => DropAction::Exit,
            "log" => DropAction::Log,
            "ignore" => {
                ignores = true;
                continue;
            }
            other => {
                let message = format!("invalid action `{other}` for dropped events");
                return Err(Problem::new(&word.origin, message)
                    .help("expected `ignore`, `log`, `alert` or `exit`"));
            }
        });
    }
    if ignores && !actions.is_empty() {
        let message = "cannot ignore losses and do something about them";
        return Err(Problem::new(&node.origin, message).help("remove `ignore`, or the others"));
    }
    config.drops.actions = actions;
    Ok(())
}

/// Parses a share of all events.
pub(crate) fn drop_threshold(config: &mut Config, node: &Node) -> Result<(), Problem> {
    let threshold = node.number()?;
    if threshold > 1.0 {
        let message = format!("cannot lose more than all events: {threshold} is above 1");
        return Err(Problem::new(&node.origin, message).help("name a part, from 0 to 1"));
    }
    config.drops.threshold = threshold;
    Ok(())
}

/// Parses the queue capacity. In Falco, 0 means unbounded; here queues are always bounded.
pub(crate) fn queue_capacity(config: &mut Config, node: &Node) -> Result<(), Problem> {
    let alerts: usize = node.small()?;
    config.queue_capacity = (alerts > 0).then_some(alerts);
    Ok(())
}

pub(crate) fn priority(node: &Node) -> Result<Priority, Problem> {
    let text = node.text()?;
    Priority::parse(text).ok_or_else(|| {
        Problem::new(&node.origin, format!("invalid priority `{text}`"))
            .help("one of emergency, alert, critical, error, warning, notice, informational, debug")
    })
}

/// Like [`priority`], but also accepts the short words of Falco's logger.
pub(crate) fn log_level(config: &mut Config, node: &Node) -> Result<(), Problem> {
    config.log.level = match node.text()?.to_ascii_lowercase().as_str() {
        "info" => Priority::Informational,
        "err" => Priority::Error,
        "crit" => Priority::Critical,
        "emerg" => Priority::Emergency,
        _ => priority(node)?,
    };
    Ok(())
}

pub(crate) fn rule_matching(config: &mut Config, node: &Node) -> Result<(), Problem> {
    config.rule_matching =
        node.word(&[("first", RuleMatching::First), ("all", RuleMatching::All)])?;
    Ok(())
}

pub(crate) fn capture_mode(config: &mut Config, node: &Node) -> Result<(), Problem> {
    config.capture.mode = node.word(&[
        ("rules", CaptureMode::Rules),
        ("all_rules", CaptureMode::AllRules),
    ])?;
    Ok(())
}

pub(crate) fn engine_kind(config: &mut Config, node: &Node) -> Result<(), Problem> {
    config.engine.kind = node.word(&[
        ("kmod", FalcoEngine::Kmod),
        ("modern_ebpf", FalcoEngine::ModernEbpf),
        // The former name, removed in 0.44.
        ("ebpf", FalcoEngine::ModernEbpf),
        ("replay", FalcoEngine::Replay),
        ("gvisor", FalcoEngine::Gvisor),
        ("nodriver", FalcoEngine::Nodriver),
    ])?;
    Ok(())
}

/// Parses Falco's number for a ring buffer size.
pub(crate) fn buffer(node: &Node) -> Result<u8, Problem> {
    let number = node.integer()?;
    u8::try_from(number)
        .ok()
        .filter(|number| (1..=10).contains(number))
        .ok_or_else(|| {
            let message = format!("expected a number from 1 to 10, found `{number}`");
            Problem::new(&node.origin, message).help("4 is 8 MiB, and each step doubles it")
        })
}

pub(crate) fn rules_files(config: &mut Config, node: &Node) -> Result<(), Problem> {
    let files = node
        .list()?
        .iter()
        .map(|item| item.text().map(PathBuf::from));
    config.rules_files = files.collect::<Result<_, _>>()?;
    Ok(())
}

/// Parses the highest level of the rules that are on.
pub(crate) fn rules_level(config: &mut Config, node: &Node) -> Result<(), Problem> {
    let word = node.text()?;
    config.level = word.parse().map_err(|error: UnknownLevel| {
        let problem = Problem::new(&node.origin, error.to_string());
        match error.suggestion() {
            Some(near) => problem.help(format!("did you mean `{near}`?")),
            None => problem,
        }
    })?;
    Ok(())
}

/// Parses `- disable: {rule: NAME}`, `- enable: {tag: TAG}`.
pub(crate) fn selections(config: &mut Config, node: &Node) -> Result<(), Problem> {
    let selections = node.list()?.iter().map(selection);
    config.rules = selections.collect::<Result<_, _>>()?;
    Ok(())
}

fn selection(node: &Node) -> Result<Selection, Problem> {
    let malformed = || {
        let message = format!("expected `enable` or `disable`, found {}", node.describe());
        Problem::new(&node.origin, message).help("write it as `- disable: {rule: NAME}`")
    };
    let [Entry { key, node, origin }] = node.group()? else {
        return Err(malformed());
    };
    let enable = match key.as_str() {
        "enable" => true,
        "disable" => false,
        _ => return Err(malformed()),
    };
    let mut selection = Selection {
        enable,
        rule: None,
        tag: None,
        implied: false,
    };
    for entry in node.group()? {
        let text = entry.node.text()?.to_owned();
        match entry.key.as_str() {
            "rule" => selection.rule = Some(text),
            "tag" => selection.tag = Some(text),
            other => {
                let message = format!("unknown key `{other}`");
                return Err(Problem::new(&entry.origin, message).help("the keys are rule and tag"));
            }
        }
    }
    if selection.rule.is_none() && selection.tag.is_none() {
        let message = format!("`{key}` names neither a rule nor a tag");
        return Err(Problem::new(origin, message));
    }
    Ok(selection)
}

pub(crate) fn address(config: &mut Config, node: &Node) -> Result<(), Problem> {
    let text = node.text()?;
    config.webserver.address = text.parse::<IpAddr>().map_err(|_no_address| {
        Problem::new(&node.origin, format!("invalid IP address `{text}`"))
    })?;
    Ok(())
}

/// Parses the path of a URL.
pub(crate) fn endpoint(config: &mut Config, node: &Node) -> Result<(), Problem> {
    let text = node.text()?;
    if !Path::new(text).has_root() {
        let message = format!("expected a path as /healthz, found `{text}`");
        return Err(Problem::new(&node.origin, message));
    }
    text.clone_into(&mut config.webserver.healthz);
    Ok(())
}

/// Shortest interval between two snapshots, as Falco documents it.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);

/// Parses `1h30m`, `500ms`, or milliseconds without a unit.
pub(crate) fn interval(config: &mut Config, node: &Node) -> Result<(), Problem> {
    let text = node.text()?;
    let interval = parse_interval(text).ok_or_else(|| {
        Problem::new(
            &node.origin,
            format!(
                "invalid interval `{text}`: expected a number and a unit, such \
        as 1h or 30s"
            ),
        )
        .help("write it as 1h, 5m, 30s or 500ms; the units are y w d h m s ms")
    })?;
    if interval < SHORTEST_INTERVAL {
        let message = format!("`{text}` is too short");
        return Err(Problem::new(&node.origin, message).help("the shortest is 100ms"));
    }
    config.metrics.interval = interval;
    Ok(())
}

/// Units in milliseconds, from the longest to the shortest. Each may occur once, in this order.
const UNITS: [(&str, u64); 7] = [
    ("y", 365 * 24 * 3_600_000),
    ("w", 7 * 24 * 3_600_000),
    ("d", 24 * 3_600_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1000),
    ("ms", 1),
];

fn parse_interval(text: &str) -> Option<Duration> {
    if let Ok(ms) = text.parse() {
        return Some(Duration::from_millis(ms));
    }
    let mut units = UNITS.iter();
    let mut total: u64 = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let letters = rest
            .find(|c: char| !c.is_ascii_alphabetic())
            .unwrap_or(rest.len());
        let (unit, after) = rest.split_at(letters);
        let (_, ms) = units.find(|(name, _)| *name == unit)?;
        total = total.checked_add(number.checked_mul(*ms)?)?;
        rest = after;
    }
    (!text.is_empty()).then(|| Duration::from_millis(total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_those_of_prometheus() {
        for (text, ms) in [
            ("1h", Some(3_600_000)),
            ("1h30m", Some(5_400_000)),
            ("1m5s100ms", Some(65_100)),
            ("500ms", Some(500)),
            ("5000", Some(5000)),
            ("1y", Some(31_536_000_000)),
            ("30m1h", None),
            ("1x", None),
            ("h", None),
            ("", None),
            ("1h 5m", None),
            ("99999999999999999999s", None),
            ("99999999999999999y", None),
        ] {
            let expected = ms.map(Duration::from_millis);
            assert_eq!(parse_interval(text), expected, "{text}");
        }
    }
}
