//! ArmorProfiles as they come from the API server.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use apiserver::{Change, Client, Resource, watch};
use kinds::crd::Definition;
use kinds::{ArmorProfile, ObjectKey};
use serde_json::Value;

use crate::agent::Agent;
use crate::index::Index;
use crate::queue::{Mark, Wanted};
use crate::store::Body;
use crate::{chain, report};

/// Follows the metadata of all ArmorProfiles.
pub(crate) fn follow(agent: &Agent, client: &Client) {
    let definition = Definition::of_kind("ArmorProfile").expect("the kind is in the table");
    let resource = Resource::of(definition).only_metadata();
    watch(client, &resource, |change| {
        take(agent, change);
        ControlFlow::Continue(())
    });
}

/// Takes a change, and has policies fetched that are missing then.
pub(crate) fn take(agent: &Agent, change: Change) {
    let mut problem = None;
    let mut state = agent.state();
    let before = state.index.version;
    let mut missing = BTreeSet::new();
    let is_answer = !matches!(change, Change::Failed(_));
    match change {
        Change::Applied(object) => {
            let key = Index::key_of(&object);
            let entry = state.index.get(&key);
            match state.index.apply(&object) {
                Ok(changed) => state.is_index_changed |= changed,
                Err(error) => {
                    // It may have become one that refuses.
                    state.is_index_changed = true;
                    problem = Some(error.to_string());
                }
            }
            missing = state.missing_after([entry, state.index.get(&key)]);
        }
        Change::Deleted(key) => {
            let entry = state.index.get(&key);
            state.is_index_changed |= state.forget(&key);
            missing = state.missing_after([entry, None]);
            problem = agent.store.remove_body(&key).err().map(|e| chain(&e));
        }
        Change::Listed => {
            for key in state.index.complete() {
                state.forget(&key);
            }
            // An empty list is written, too: a file that is missing says that nothing was listed.
            state.is_index_changed = true;
            let known = |key: &ObjectKey| state.index.get(key).is_some();
            problem = agent.store.retain_bodies(known).err().map(|e| chain(&e));
            missing = state.missing();
        }
        Change::Failed(error) => {
            state.counters.errors += 1;
            problem = Some(format!("cannot watch ArmorProfiles: {}", chain(&error)));
        }
    }
    if is_answer {
        // What was asked in vain is among what is missing.
        state.asked_in_vain = false;
    }
    state.is_changed |= state.is_index_changed || state.index.version != before;
    drop(state);
    agent.want(missing);
    agent.wake();
    if let Some(problem) = problem {
        agent.say(problem);
    }
}

/// Asks the API server for what containers need, for as long as the program runs.
pub(crate) fn ask(agent: &Agent, client: &Client) {
    loop {
        let (wanted, has_room) = agent.wanted.take();
        match wanted {
            Wanted::Profile(key) => fetch(agent, client, &key),
            Wanted::Mark(mark) => check(agent, client, mark),
        }
        if has_room {
            let missing = agent.state().missing();
            agent.want(missing);
        }
    }
}

/// Finds whether the policy of a mark exists. An answer that does not come leaves it open.
fn check(agent: &Agent, client: &Client, mark: Mark) {
    let installation = &agent.settings.installation;
    let found = report::has_policy(client, &mark.profile, &mark.pod.0, installation);
    let mut state = agent.state();
    match found {
        Ok(true) => {}
        Ok(false) => {
            state.note_gone(mark);
            state.is_changed = true;
            drop(state);
            agent.wake();
        }
        Err(error) => {
            state.counters.errors += 1;
            state.asked_in_vain = true;
            drop(state);
            let profile = &mark.profile;
            let text = format!("cannot find whether the policy of {profile} exists");
            agent.say(format!("{text}: {}", chain(&error)));
        }
    }
}

/// Fetches a policy.
fn fetch(agent: &Agent, client: &Client, key: &ObjectKey) {
    let is_needless = {
        let state = agent.state();
        // It may have been fetched since, or deleted.
        state.body(key).is_some() || state.index.get(key).is_none()
    };
    if is_needless {
        return;
    }
    let fetched = report::profile(client, key).map_err(|error| chain(&error));
    let body = fetched.and_then(body);
    // Before the state is locked: nothing waits for the disk with it.
    let written = body
        .as_ref()
        .map_or(Ok(()), |body| agent.store.write_body(key, body));
    if let Ok(body) = &body {
        agent.prepare(key, body);
    }
    let mut state = agent.state();
    state.is_changed = true;
    let problem = match body {
        Ok(body) => {
            state.take_body(key, body);
            written.err().map(|error| chain(&error))
        }
        Err(problem) => {
            state.counters.errors += 1;
            let text = format!("cannot fetch the policy: {problem}");
            state.failures.insert(key.clone(), text.clone());
            Some(format!("{key}: {text}"))
        }
    };
    drop(state);
    agent.wake();
    if let Some(problem) = problem {
        agent.say(problem);
    }
}

/// The policy of an ArmorProfile.
fn body(mut object: Value) -> Result<Body, String> {
    let definition = Definition::of_kind("ArmorProfile").expect("the kind is in the table");
    object["kind"] = "ArmorProfile".into();
    object["apiVersion"] = definition.api_version().into();
    let profile: ArmorProfile =
        serde_json::from_value(object).map_err(|error| error.to_string())?;
    let body = Body {
        hash: profile.spec.profile.hash,
        policy: profile.spec.profile.policy,
    };
    match body.is_whole() {
        true => Ok(body),
        false => {
            Err("its hash is not that of its text: it is not of tollgate's operator".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_policy_whose_text_does_not_have_its_hash_is_refused() {
        let object = |hash: &str| {
            json!({ "metadata": { "name": "p", "namespace": "demo" }, "spec": {
                "target": { "kind": "Pod", "name": "web" }, "updateExistingWorkloads": false,
                "behaviorModeling": { "enable": false, "duration": 0 },
                "profile": { "name": "p", "enforcer": "Seccomp", "mode": "enforce", "hash": hash, "policy": "{}" } } })
        };
        let hash = kinds::policy_hash("{}");
        assert_eq!(body(object(&hash)).map(|body| body.hash), Ok(hash));
        for forged in ["", &kinds::policy_hash("{ }")] {
            let error = body(object(forged)).unwrap_err();
            assert!(error.contains("hash"), "{error}");
        }
    }
}
