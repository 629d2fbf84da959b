//! Bundles on their way to agents: who gets which, and when a roll-out halts.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use labels::Labels;
use serde_json::{Value, json};
use store::{Agent, AgentId, Bundle, BundleReport, Rollout, Store, StoreError, Target};

use crate::alert::time_text;
use crate::answer::{Refusal, json_response};
use crate::auth::{self, Caller};
use crate::secret;
use crate::server::Shared;

/// Interval at which gates are looked at.
const WATCH: Duration = Duration::from_secs(15);

/// Characters of a digest: SHA-256 in hexadecimal.
const DIGEST: usize = 64;

/// Longest reason of a refusal in characters.
const REASON: usize = 300;

/// The bundle that an agent is to have, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice<'r> {
    /// The roll-out that decides; `None` if no roll-out gives the agent a bundle.
    pub rollout: Option<&'r Rollout>,
    /// The bundle; `None` leaves the agent what it has.
    pub bundle: Option<&'r Bundle>,
    /// Why, in a few words.
    pub why: String,
}

/// Chooses bundles for agents.
#[derive(Debug)]
pub struct Choices<'r> {
    rollouts: &'r [Rollout],
}

impl<'r> Choices<'r> {
    /// Chooses among these roll-outs.
    pub fn new(rollouts: &'r [Rollout]) -> Self {
        Self { rollouts }
    }

    /// Returns the choice for an agent that the store lists, by its labels and by the bundle that it says is in force.
    pub fn of(&self, agent: &Agent) -> Choice<'r> {
        // What is no inventory names no bundle.
        let inventory: Value = serde_json::from_str(&agent.inventory).unwrap_or(Value::Null);
        let takes_none = match (agent.is_direct, inventory.get("bundle")) {
            (true, _) => Some("a sender without an agent takes no bundle"),
            (false, None) => Some("the agent has not said yet whether it takes bundles"),
            (false, Some(Value::Object(_))) => None,
            (false, Some(_)) => Some("the agent pins no key, and takes no bundle"),
        };
        if let Some(why) = takes_none {
            return nothing(why.to_owned());
        }
        let of_class = self.rollouts.iter();
        let of_class = of_class.filter(|rollout| rollout.target.class == agent.class);
        choose(
            of_class,
            agent.id,
            &agent.labels,
            reported(&inventory).0.as_deref(),
        )
    }
}

fn nothing(why: String) -> Choice<'static> {
    Choice {
        rollout: None,
        bundle: None,
        why,
    }
}

/// Chooses the bundle of an agent among the roll-outs of its class. The most specific one decides; one that has neither its
/// bundle nor one before for this agent leaves it to the next.
pub(crate) fn choose<'r>(
    of_class: impl IntoIterator<Item = &'r Rollout>,
    agent: AgentId,
    labels: &Labels,
    in_force: Option<&str>,
) -> Choice<'r> {
    let ranked = match store::ranked(of_class, labels) {
        Ok(ranked) => ranked,
        Err(ambiguous) => return nothing(ambiguous.to_string()),
    };
    let choice = ranked.into_iter().find_map(|rollout| {
        let (bundle, why) = given_by(rollout, agent, in_force)?;
        Some(Choice {
            rollout: Some(rollout),
            bundle: Some(bundle),
            why: format!("{}: {why}", rollout.target),
        })
    });
    choice.unwrap_or_else(|| nothing("no roll-out gives this agent a bundle".to_owned()))
}

/// Returns the bundle that a roll-out gives an agent, and why: its own if the agent is in the part that gets it, else the
/// one before, if there was one.
fn given_by<'r>(
    rollout: &'r Rollout,
    agent: AgentId,
    in_force: Option<&str>,
) -> Option<(&'r Bundle, String)> {
    let has_it = in_force == Some(&*rollout.bundle.digest);
    let (percent, is_halted) = (rollout.percent, rollout.halted.is_some());
    match place(&rollout.target, agent) < percent {
        true if !is_halted => Some((&rollout.bundle, format!("in the {percent} %"))),
        _ if has_it => Some((&rollout.bundle, "keeps what it has".to_owned())),
        is_in_part => {
            let why = match is_in_part {
                true => "the one before, as the roll-out is halted".to_owned(),
                false => format!("the one before, as it is not in the {percent} %"),
            };
            Some((rollout.previous.as_ref()?, why))
        }
    }
}

/// Returns the place of an agent in the order of a target's roll-outs, from 0 to 99. It stays, so that an agent of the
/// first tenth is one of the first half, too.
fn place(target: &Target, agent: AgentId) -> u8 {
    let Target { class, selector } = target;
    let hash = match selector.tests() {
        0 => secret::hash(&format!("{class} {}", agent.0)),
        _ => secret::hash(&format!("{class} {selector} {}", agent.0)),
    };
    u8::try_from(u16::from_be_bytes([hash[0], hash[1]]) % 100).unwrap_or(0)
}

/// Returns the labels that an inventory names. One that names none, as those of older builds, has none.
pub(crate) fn labels_of(inventory: &Value) -> Result<Labels, String> {
    let wrong = |problem: &dyn std::fmt::Display| format!("the labels cannot be used: {problem}");
    let labels = match &inventory["labels"] {
        Value::Null => return Ok(Labels::default()),
        Value::Object(labels) => labels,
        _ => return Err(wrong(&"expected an object")),
    };
    if labels.len() > labels::MAX_LABELS {
        return Err(wrong(&labels::LabelError::TooMany));
    }
    let mut pairs = Vec::new();
    for (key, value) in labels {
        let value = value
            .as_str()
            .ok_or_else(|| wrong(&"a value is not text"))?;
        pairs.push((key, value));
    }
    Labels::new(pairs).map_err(|error| wrong(&error))
}

/// What an inventory says about the agent's bundle: the digest of the one in force, and what is to be noted. What is no
/// digest is that of no bundle.
fn reported(inventory: &Value) -> (Option<String>, BundleReport) {
    let bundle = &inventory["bundle"];
    let is_hexadecimal = |c: u8| c.is_ascii_digit() || matches!(c, b'a'..=b'f');
    let digest = |value: &Value| {
        let text = value.as_str()?;
        let is_one = text.len() == DIGEST && text.bytes().all(is_hexadecimal);
        is_one.then(|| text.to_owned())
    };
    let in_force = digest(&bundle["digest"]);
    let refused = &bundle["refused"];
    let report = match digest(&refused["digest"]) {
        Some(digest) => {
            let reason = refused["reason"].as_str().unwrap_or_default();
            let refused = Some(reason.chars().take(REASON).collect());
            BundleReport { digest, refused }
        }
        None => BundleReport {
            digest: in_force.clone().unwrap_or_default(),
            refused: None,
        },
    };
    (in_force, report)
}

/// Notes what an agent says about its labels and its bundle, and returns the digest of the one that it is to have.
pub(crate) fn exchange(
    store: &dyn Store,
    agent: AgentId,
    labels: &Labels,
    inventory: &Value,
) -> Result<Option<String>, StoreError> {
    store.set_labels(agent, labels)?;
    if !inventory["bundle"].is_object() {
        // It pins no key, or has not said whether it does.
        return Ok(None);
    }
    let (in_force, report) = reported(inventory);
    let is_refusal = report.refused.is_some();
    if store.note_bundle(agent, report)? && is_refusal {
        // Before the next agent gets the bundle that this one refuses. Other limits wait for the next interval.
        watch_once(store)?;
    }
    let (rollouts, labels) = store.rollouts_of(agent)?;
    let choice = choose(&rollouts, agent, &labels, in_force.as_deref());
    Ok(choice.bundle.map(|bundle| bundle.digest.clone()))
}

/// Halts roll-outs whose gate closes.
fn watch_once(store: &dyn Store) -> Result<(), StoreError> {
    for rollout in store.rollouts()? {
        if rollout.halted.is_none()
            && let Some(reason) = rollout.health.problem(&rollout.gate)
        {
            store.halt(&rollout.target, rollout.bundle.id, &reason)?;
        }
    }
    Ok(())
}

/// Looks at gates at intervals.
pub(crate) async fn watch(shared: Arc<Shared>) {
    let mut interval = tokio::time::interval(WATCH);
    loop {
        interval.tick().await;
        // A store that fails here fails for senders, too, who are told; the next turn tries again.
        let _ = shared.blocking(watch_once).await;
    }
}

/// `GET /api/v1/bundle`: the bundle that the agent is to have.
pub(crate) async fn bundle(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
) -> Result<Response, Refusal> {
    let agent = auth::agent(&shared, &caller).await?.id;
    let text = shared.blocking(move |store| {
        let (rollouts, labels) = store.rollouts_of(agent)?;
        // What is in force the agent has already.
        match choose(&rollouts, agent, &labels, None).bundle {
            Some(bundle) => store.bundle_text(bundle.id),
            None => Ok(None),
        }
    });
    let answer = json!({"bundle": text.await?});
    Ok(json_response(StatusCode::OK, &answer))
}

/// `GET /api/v1/rollouts`
pub(crate) async fn rollouts(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    auth::reader(&shared, &headers).await?;
    let asked = shared.blocking(|store| Ok((store.bundles()?, store.rollouts()?)));
    let (bundles, rollouts) = asked.await?;
    let answer = json!({
        "bundles": bundles.iter().map(bundle_json).collect::<Vec<_>>(),
        "rollouts": rollouts.iter().map(rollout_json).collect::<Vec<_>>(),
    });
    Ok(json_response(StatusCode::OK, &answer))
}

fn bundle_json(bundle: &Bundle) -> Value {
    json!({
        "id": bundle.id.0,
        "version": bundle.version,
        "digest": bundle.digest,
        "key": bundle.key,
        "created": time_text(bundle.created_ns),
        "created_by": bundle.created_by,
    })
}

fn rollout_json(rollout: &Rollout) -> Value {
    json!({
        "class": rollout.target.class,
        "selector": rollout.target.selector.to_string(),
        "priority": rollout.priority,
        "bundle": rollout.bundle.id.0,
        "previous": rollout.previous.as_ref().map(|bundle| bundle.id.0),
        "percent": rollout.percent,
        "max_failures": rollout.gate.failures,
        "max_losses": rollout.gate.losses,
        "max_alerts": rollout.gate.alerts,
        "halted": rollout.halted,
        "started": time_text(rollout.started_ns),
        "actor": rollout.actor,
        "agents": rollout.health.agents,
        "in_force": rollout.health.in_force,
        "refused": rollout.health.refused,
    })
}

#[cfg(test)]
mod tests {
    use labels::Selector;
    use store::{BundleId, Gate, Health};

    use super::*;

    fn bundle(version: u64) -> Bundle {
        Bundle {
            id: BundleId(1),
            version,
            digest: format!("d{version}"),
            key: "k".to_owned(),
            created_ns: 0,
            created_by: "ann".to_owned(),
        }
    }

    fn rollout(selector: &str, (version, previous): (u64, Option<u64>), percent: u8) -> Rollout {
        Rollout {
            target: Target {
                selector: Selector::parse(selector).expect(selector),
                ..Target::class("web")
            },
            priority: 0,
            bundle: bundle(version),
            previous: previous.map(bundle),
            percent,
            gate: Gate::default(),
            halted: None,
            started_ns: 0,
            actor: "ann".to_owned(),
            health: Health::default(),
        }
    }

    fn chosen(rollouts: &[Rollout], labels: &str, in_force: Option<&str>) -> (Option<u64>, String) {
        let labels = Labels::parse(labels).expect(labels);
        let choice = choose(rollouts, AgentId(1), &labels, in_force);
        (choice.bundle.map(|bundle| bundle.version), choice.why)
    }

    #[test]
    fn the_most_specific_roll_out_that_has_a_bundle_for_the_agent_decides() {
        let mut rollouts = vec![
            rollout("", (1, None), 100),
            rollout("tier=db", (2, None), 100),
            rollout("tier=db,zone", (4, Some(3)), 0),
        ];
        let of = |version, why: &str| (Some(version), why.to_owned());
        assert_eq!(
            chosen(&rollouts, "tier=web", None),
            of(1, "class web: in the 100 %")
        );
        let db = of(2, "class web, selector tier=db: in the 100 %");
        assert_eq!(chosen(&rollouts, "tier=db", None), db);
        let zone = |why: &str| format!("class web, selector tier=db,zone: {why}");
        let before = of(3, &zone("the one before, as it is not in the 0 %"));
        assert_eq!(chosen(&rollouts, "tier=db,zone=b", None), before);
        let keeps = of(4, &zone("keeps what it has"));
        assert_eq!(chosen(&rollouts, "tier=db,zone=b", Some("d4")), keeps);
        // Without a bundle before, the agents outside of the part have what the next roll-out gives.
        rollouts[2] = rollout("tier=db,zone", (4, None), 0);
        assert_eq!(chosen(&rollouts, "tier=db,zone=b", None), db);
        rollouts[1].halted = Some("why".to_owned());
        assert_eq!(chosen(&rollouts, "tier=db,zone=b", None).0, Some(1));
        assert_eq!(chosen(&rollouts[1..], "tier=web", None).0, None);
        // Two of the same rank give nothing, and both are named.
        rollouts.push(rollout("zone=b", (9, None), 100));
        let (version, why) = chosen(&rollouts, "tier=db,zone=b", None);
        assert!(
            version.is_none() && why.contains("selector tier=db and of class web, selector zone=b"),
            "{why}"
        );
    }

    #[test]
    fn an_agent_that_takes_no_bundle_is_told_from_one_that_has_not_said_so() {
        let rollouts = [rollout("", (1, None), 100)];
        let why = |inventory: &str| {
            let agent = Agent {
                id: AgentId(1),
                class: "web".to_owned(),
                host: "h".to_owned(),
                is_direct: false,
                first_seen_ns: 1,
                last_seen_ns: 1,
                acknowledged: 0,
                missing: 0,
                inventory: inventory.to_owned(),
                is_ended: false,
                labels: Labels::default(),
            };
            let choice = Choices::new(&rollouts).of(&agent);
            (choice.bundle.is_some(), choice.why)
        };
        let unknown = "the agent has not said yet whether it takes bundles";
        for inventory in ["", "{}", r#"{"kernel": "6.1"}"#] {
            assert_eq!(why(inventory), (false, unknown.to_owned()), "{inventory}");
        }
        let none = "the agent pins no key, and takes no bundle";
        assert_eq!(why(r#"{"bundle": null}"#), (false, none.to_owned()));
        assert!(why(r#"{"bundle": {}}"#).0);
    }

    #[test]
    fn labels_that_an_agent_names_are_bounded_and_validated() {
        let of = |labels: Value| labels_of(&json!({"labels": labels}));
        let good = of(json!({"tier": "db", "app.kubernetes.io/name": ""}));
        assert_eq!(
            good.expect("valid").to_string(),
            "app.kubernetes.io/name=,tier=db"
        );
        assert_eq!(labels_of(&json!({})), Ok(Labels::default()));
        let many: Value = (0..100_000).map(|n| (n.to_string(), json!("x"))).collect();
        for bad in [
            many,
            json!({"tier": 7}),
            json!({"tier": ["db"]}),
            json!(["tier=db"]),
            json!("tier=db"),
            json!({"tier": "<script>"}),
            json!({"tier": "db\u{1b}[2J"}),
            json!({"a,b=c": "d"}),
            json!({"": "d"}),
            json!({"k".repeat(100_000): "v"}),
            json!({"k": "v".repeat(100_000)}),
        ] {
            let error = of(bad).expect_err("not valid");
            assert!(error.len() < 500 && !error.contains('\u{1b}'), "{error}");
        }
    }

    #[test]
    fn a_part_of_the_agents_is_the_same_each_time_and_about_as_large_as_said() {
        let within = |percent: u8| -> Vec<i64> {
            (0..10_000)
                .filter(|id| place(&Target::class("web"), AgentId(*id)) < percent)
                .collect()
        };
        let (tenth, half) = (within(10), within(50));
        assert!((900..1100).contains(&tenth.len()), "{}", tenth.len());
        assert!(tenth.iter().all(|id| half.binary_search(id).is_ok()));
        assert_eq!((within(0).len(), within(100).len()), (0, 10_000));
        let with_labels = Target {
            selector: Selector::parse("tier=db").expect("a selector"),
            ..Target::class("web")
        };
        for target in [Target::class("db"), with_labels] {
            let other = (0..10_000).filter(|id| place(&target, AgentId(*id)) < 10);
            let other: Vec<_> = other.collect();
            assert!((900..1100).contains(&other.len()), "{}", other.len());
            assert_ne!(tenth, other);
        }
    }

    #[test]
    fn what_an_agent_says_is_bounded() {
        let (long, good) = ("x".repeat(100_000), "0a".repeat(DIGEST / 2));
        let inventory =
            json!({"bundle": {"digest": good, "refused": {"digest": good, "reason": long}}});
        let (in_force, report) = reported(&inventory);
        assert_eq!((in_force, &report.digest), (Some(good.clone()), &good));
        assert_eq!(report.refused.expect("why").len(), REASON);
        let nothing = BundleReport {
            digest: String::new(),
            refused: None,
        };
        for odd in [
            json!({}),
            json!({"bundle": {"digest": 7}}),
            json!({"bundle": {"digest": good.to_uppercase()}}),
            json!({"bundle": {"digest": good + "0", "refused": {"digest": long, "reason": "r"}}}),
            json!({"bundle": []}),
        ] {
            assert_eq!(reported(&odd), (None, nothing.clone()));
        }
    }
}
