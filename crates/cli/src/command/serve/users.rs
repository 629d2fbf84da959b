//! `tollgate serve user`: users of the page. They are changed in the store itself, as tokens are.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use collector::{AccountError, NewSecret, add_user, set_password};
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;
use serde_json::json;
use store::{Scope, Store, User};

use super::args::{AddUser, ChangePassword, ListUsers, PasswordOption, RemoveUser, Role, UserVerb};
use super::server::{broken, open};
use super::tokens::{actor, time};

/// Longest file of a password, in bytes.
const LIMIT: u64 = 4096;

pub(super) fn execute(verb: UserVerb) -> Outcome {
    match verb {
        UserVerb::Add(args) => add(&args),
        UserVerb::List(args) => list(&args),
        UserVerb::Remove(args) => remove(&args),
        UserVerb::Passwd(args) => change(&args),
    }
}

/// Returns what someone with a role may do.
pub(super) fn scope(role: Role) -> Scope {
    match role {
        Role::Viewer => Scope::Viewer,
        Role::Operator => Scope::Operator,
        Role::Admin => Scope::Admin,
    }
}

fn add(args: &AddUser) -> Outcome {
    let store = open(&args.store.place, true)?;
    let (password, is_made) = password(&args.password)?;
    let added = add_user(&*store, (&args.name, &password), scope(args.role), &actor());
    added.map_err(|error| refused("add", &args.name, &error))?;
    done("added", &args.name, is_made.then_some(&*password))
}

fn change(args: &ChangePassword) -> Outcome {
    let store = open(&args.store.place, false)?;
    let (password, is_made) = password(&args.password)?;
    let changed = set_password(&*store, (&args.name, &password), &actor());
    changed.map_err(|error| refused("change the password of", &args.name, &error))?;
    done(
        "changed the password of",
        &args.name,
        is_made.then_some(&*password),
    )
}

fn done(what: &str, name: &str, made: Option<&str>) -> Outcome {
    match made {
        Some(password) => {
            terminal::complain(&format!(
                "tollgate: {what} {name}; the password follows and is not shown again\n"
            ));
            terminal::print(&format!("{password}\n"))
        }
        None => terminal::print(&format!("{what} {name}\n")),
    }
}

fn refused(verb: &str, name: &str, error: &AccountError) -> Failure {
    let failure = Failure::new(Exit::BadInput, format!("cannot {verb} `{name}`: {error}"));
    match error {
        AccountError::Exists(_) => failure.help("see `tollgate serve user list`"),
        AccountError::Password => failure.help("without --password-file one is made and printed"),
        AccountError::Name => failure.help("name the user as in `ann` or `ann@example.com`"),
        AccountError::Random | AccountError::Store(_) => {
            failure.help("see whether the store can be written")
        }
    }
}

/// Returns the password, and whether it was made here.
fn password(option: &PasswordOption) -> Result<(String, bool), Failure> {
    let Some(path) = &option.password_file else {
        let secret = NewSecret::of_token().ok_or_else(|| {
            Failure::new(
                Exit::Unsupported,
                "cannot make a password: the kernel has no random numbers",
            )
        })?;
        // The prefix is for tokens.
        let text = secret.text.trim_start_matches("tgt_");
        return Ok((text.chars().take(24).collect(), true));
    };
    let mut text = String::new();
    let read = match path == Path::new("-") {
        true => io::stdin().take(LIMIT).read_to_string(&mut text),
        false => File::open(path).and_then(|file| file.take(LIMIT).read_to_string(&mut text)),
    };
    read.map_err(|error| {
        let message = format!("cannot read the password of {}: {error}", path.display());
        Failure::new(Exit::BadInput, message).help("give the password on one line")
    })?;
    let line = text.lines().next().unwrap_or_default();
    Ok((line.to_owned(), false))
}

fn role(user: &User) -> &'static str {
    match user.scope {
        Scope::Agents(_) => "agent",
        Scope::Viewer => "viewer",
        Scope::Operator => "operator",
        Scope::Admin => "admin",
    }
}

/// Returns what the user logs in by.
fn login(user: &User) -> &'static str {
    match user.is_federated() {
        true => "provider",
        false => "password",
    }
}

fn list(args: &ListUsers) -> Outcome {
    let store = open(&args.store.place, false)?;
    let users = open_users(&*store)?;
    if args.json {
        let rows = users.iter().map(|user| {
            json!({
                "name": user.name,
                "role": role(user),
                "login": login(user),
                "created": time(user.created_ns),
                "created_by": user.created_by,
                "last_login": user.last_login_ns.map(time),
            })
        });
        let rows: Vec<_> = rows.collect();
        return terminal::print(&format!("{}\n", json!({"users": rows})));
    }
    let mut text = format!(
        "{:<24} {:<10} {:<10} {:<21} LAST LOGIN\n",
        "NAME", "ROLE", "LOGIN", "CREATED"
    );
    for user in &users {
        let last = user.last_login_ns.map_or_else(|| "never".to_owned(), time);
        let created = time(user.created_ns);
        let _ = writeln!(
            text,
            "{:<24} {:<10} {:<10} {created:<21} {last}",
            user.name,
            role(user),
            login(user)
        );
    }
    terminal::print(&text)
}

fn open_users(store: &dyn Store) -> Result<Vec<User>, Failure> {
    store.users().map_err(|error| broken(&error))
}

fn remove(args: &RemoveUser) -> Outcome {
    let store = open(&args.store.place, false)?;
    let removed = store.remove_user(&args.name, &actor());
    match removed.map_err(|error| broken(&error))? {
        true => terminal::print(&format!("removed {}\n", args.name)),
        false => {
            let message = format!("cannot remove `{}`: there is no such user", args.name);
            Err(Failure::new(Exit::BadInput, message).help("see `tollgate serve user list`"))
        }
    }
}
