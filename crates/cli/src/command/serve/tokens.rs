//! `tollgate serve token`: tokens of agents and readers. They are changed in the store itself, so whoever can
//! write to it needs no token.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use collector::NewSecret;
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;
use jiff::Timestamp;
use serde_json::json;
use store::{NewToken, Scope, Token, TokenId};

use super::args::{CreateToken, ListTokens, RevokeToken, Role, TokenVerb};
use super::server::{broken, open};

pub(super) fn execute(verb: TokenVerb) -> Outcome {
    match verb {
        TokenVerb::Create(args) => create(args),
        TokenVerb::List(args) => list(&args),
        TokenVerb::Revoke(args) => revoke(&args),
    }
}

/// Name of the user in the audit log.
pub(super) fn actor() -> String {
    format!("uid {}", rustix::process::getuid().as_raw())
}

fn now_ns() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| i64::try_from(now.as_nanos()).unwrap_or(i64::MAX))
}

fn create(args: CreateToken) -> Outcome {
    // The first token may be made before the first start.
    let store = open(&args.store.place, true)?;
    let secret = NewSecret::of_token().ok_or_else(|| {
        Failure::new(
            Exit::Unsupported,
            "cannot create a token: the kernel has no random numbers",
        )
    })?;
    let scope = match (args.agent_class, args.role) {
        (Some(class), _) => Scope::Agents(class),
        (None, Some(Role::Operator)) => Scope::Operator,
        (None, Some(Role::Admin)) => Scope::Admin,
        // The command line requires one of both.
        (None, Some(Role::Viewer) | None) => Scope::Viewer,
    };
    let lasts = args
        .expires
        .map(|lasts| i64::try_from(lasts.as_nanos()).unwrap_or(i64::MAX));
    let token = NewToken {
        scope,
        hash: secret.hash,
        expires_ns: lasts.map(|lasts| now_ns().saturating_add(lasts)),
        actor: actor(),
    };
    let id = store.create_token(token).map_err(|error| broken(&error))?;
    terminal::complain(&format!(
        "tollgate: token {} follows; it is not shown again\n",
        id.0
    ));
    terminal::print(&format!("{}\n", secret.text))
}

fn list(args: &ListTokens) -> Outcome {
    let store = open(&args.store.place, false)?;
    let tokens = store.tokens().map_err(|error| broken(&error))?;
    if args.json {
        let rows: Vec<_> = tokens.iter().map(token_json).collect();
        return terminal::print(&format!("{}\n", json!({"tokens": rows})));
    }
    let mut text = format!(
        "{:<7} {:<24} {:<21} {:<28} AGENTS\n",
        "NUMBER", "FOR", "CREATED", "STATE"
    );
    for token in &tokens {
        let created = time(token.created_ns);
        let _ = writeln!(
            text,
            "{:<7} {:<24} {:<21} {:<28} {}",
            token.id.0,
            scope(token),
            created,
            state(token),
            token.agents
        );
    }
    terminal::print(&text)
}

fn scope(token: &Token) -> String {
    match (&token.scope, &token.certificate) {
        (Scope::Agents(class), Some(name)) => format!("certificate {class}/{name}"),
        (Scope::Agents(class), None) => format!("agents of {class}"),
        (Scope::Viewer, _) => "viewer".to_owned(),
        (Scope::Operator, _) => "operator".to_owned(),
        (Scope::Admin, _) => "admin".to_owned(),
    }
}

fn state(token: &Token) -> String {
    match (token.revoked_ns, token.expires_ns) {
        (Some(_), _) => "revoked".to_owned(),
        (None, Some(end)) if end <= now_ns() => "expired".to_owned(),
        (None, Some(end)) => format!("until {}", time(end)),
        (None, None) => "in force".to_owned(),
    }
}

/// Returns a time in whole seconds, in UTC.
pub(super) fn time(time_ns: i64) -> String {
    let seconds = time_ns.div_euclid(1_000_000_000);
    Timestamp::from_second(seconds).map_or_else(|_| seconds.to_string(), |time| time.to_string())
}

fn token_json(token: &Token) -> serde_json::Value {
    json!({
        "id": token.id.0,
        "for": scope(token),
        "created": time(token.created_ns),
        "created_by": token.created_by,
        "expires": token.expires_ns.map(time),
        "revoked": token.revoked_ns.map(time),
        "agents": token.agents,
        "certificate": token.certificate,
    })
}

fn revoke(args: &RevokeToken) -> Outcome {
    let store = open(&args.store.place, false)?;
    let revoked = store.revoke_token(TokenId(args.number), &actor());
    match revoked.map_err(|error| broken(&error))? {
        true => terminal::print(&format!("revoked token {}\n", args.number)),
        false => {
            let message = format!(
                "cannot revoke token {}: no such token is in force",
                args.number
            );
            Err(Failure::new(Exit::BadInput, message).help("see `tollgate serve token list`"))
        }
    }
}
