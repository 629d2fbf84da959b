//! Bundles of rules on their way to agents: who gets which, and when a roll-out halts.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde_json::{Value, json};
use store::{AgentId, Bundle, BundleReport, Rollout, Store, StoreError};

use crate::alert::time_text;
use crate::answer::{Refusal, json_response};
use crate::auth;
use crate::secret;
use crate::server::Shared;

/// Interval at which gates are looked at.
const WATCH: Duration = Duration::from_secs(15);

/// Characters of a digest: SHA-256 in hexadecimal.
const DIGEST: usize = 64;

/// Longest reason of a refusal in characters.
const REASON: usize = 300;

/// Returns the bundle that an agent is to have: that of its class's roll-out if the agent is in the part that gets it,
/// else the one before.
pub(crate) fn of_agent(
    rollout: &Rollout,
    agent: AgentId,
    in_force: Option<&str>,
) -> Option<Bundle> {
    let has_it = in_force == Some(&*rollout.bundle.digest);
    let gets_it = rollout.halted.is_none() && place(&rollout.class, agent) < rollout.percent;
    match has_it || gets_it {
        true => Some(rollout.bundle.clone()),
        false => rollout.previous.clone(),
    }
}

/// Returns the place of an agent in the order of its class's roll-outs, from 0 to 99. It stays, so that an agent of the
/// first tenth is one of the first half, too.
fn place(class: &str, agent: AgentId) -> u8 {
    let hash = secret::hash(&format!("{class} {}", agent.0));
    u8::try_from(u16::from_be_bytes([hash[0], hash[1]]) % 100).unwrap_or(0)
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

/// Notes what an agent says about its bundle, and returns the digest of the one that it is to have.
pub(crate) fn exchange(
    store: &dyn Store,
    agent: AgentId,
    inventory: &Value,
) -> Result<Option<String>, StoreError> {
    if !inventory["bundle"].is_object() {
        // It pins no key, and takes none.
        return Ok(None);
    }
    let (in_force, report) = reported(inventory);
    if store.note_bundle(agent, report)? {
        // Before the next agent gets the bundle that this one refuses.
        watch_once(store)?;
    }
    let rollout = store.rollout_of(agent)?;
    let bundle = rollout.and_then(|rollout| of_agent(&rollout, agent, in_force.as_deref()));
    Ok(bundle.map(|bundle| bundle.digest))
}

/// Halts roll-outs whose gate closes.
fn watch_once(store: &dyn Store) -> Result<(), StoreError> {
    for rollout in store.rollouts()? {
        if rollout.halted.is_none()
            && let Some(reason) = rollout.health.problem(&rollout.gate)
        {
            store.halt(&rollout.class, rollout.bundle.id, &reason)?;
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
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let agent = auth::agent(&shared, &headers).await?.id;
    let text = shared.blocking(move |store| {
        let rollout = store.rollout_of(agent)?;
        // What is in force the agent has already.
        let bundle = rollout.and_then(|rollout| of_agent(&rollout, agent, None));
        match bundle {
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
        "class": rollout.class,
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
    use super::*;

    #[test]
    fn a_part_of_the_agents_is_the_same_each_time_and_about_as_large_as_said() {
        let within = |percent: u8| -> Vec<i64> {
            (0..10_000)
                .filter(|id| place("web", AgentId(*id)) < percent)
                .collect()
        };
        let (tenth, half) = (within(10), within(50));
        assert!((900..1100).contains(&tenth.len()), "{}", tenth.len());
        assert!(tenth.iter().all(|id| half.binary_search(id).is_ok()));
        assert_eq!((within(0).len(), within(100).len()), (0, 10_000));
        let other = (0..10_000).filter(|id| place("db", AgentId(*id)) < 10);
        assert_ne!(tenth, other.collect::<Vec<_>>());
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
