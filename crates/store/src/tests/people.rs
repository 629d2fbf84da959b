//! Users, sessions, invitations and triage.

use super::*;
use crate::account::{
    Federated, FederatedUser, Invitation, NewSession, NewUser, PasswordSet, Triage, UserAdded,
};

for_each_database! {
    a_session_ends_with_its_time_its_user_and_its_password,
    an_invitation_is_used_once_and_decides_the_role,
    an_invitation_ends_with_the_right_to_invite,
    the_latest_first_link_alone_works_and_ends_with_the_first_user,
    a_user_of_a_provider_has_the_role_of_its_last_login_and_no_password,
    a_user_of_a_provider_gets_no_password_and_stays_logged_in,
    a_muted_group_is_hidden_until_its_time_and_keeps_its_comments,
    a_tail_goes_on_after_the_last_alert,
    a_flood_does_not_hold_a_tail_up_nor_fill_it_with_bodies,
}

fn user(name: &str, scope: Scope) -> NewUser {
    NewUser {
        name: name.to_owned(),
        scope,
        password: "$argon2id$x".to_owned(),
        actor: "uid 0".to_owned(),
    }
}

fn begin(store: &dyn Store, user: &str, hash: u8, expires_ns: i64) -> bool {
    begin_with(store, (user, "$argon2id$x"), hash, expires_ns)
}

fn begin_with(
    store: &dyn Store,
    (user, password): (&str, &str),
    hash: u8,
    expires_ns: i64,
) -> bool {
    let session = NewSession {
        hash: [hash; 32],
        user: user.to_owned(),
        password: password.to_owned(),
        expires_ns,
    };
    store.begin_session(session).expect("writable")
}

fn set_password(store: &dyn Store, user: &str) -> PasswordSet {
    let set = store.set_password(user, "$new", user);
    set.expect("writable")
}

fn a_session_ends_with_its_time_its_user_and_its_password(fixture: &Fixture) {
    let store = &*fixture.store;
    let later = now_ns() + HOUR;
    let is_open = |hash: u8| store.session(&[hash; 32]).expect("readable").is_some();
    for name in ["ann", "bob"] {
        let added = store.add_user(user(name, Scope::Operator));
        assert_eq!(added.expect("writable"), UserAdded::Added);
    }
    let again = store.add_user(user("ann", Scope::Admin));
    assert_eq!(again.expect("writable"), UserAdded::Taken);
    assert!(begin(store, "ann", 1, later) && begin(store, "ann", 2, now_ns() - 1));
    assert!(begin(store, "bob", 3, later) && !begin(store, "eve", 4, later));
    assert!(is_open(1) && !is_open(2) && is_open(3) && !is_open(4));
    assert_eq!(set_password(store, "ann"), PasswordSet::Changed);
    assert!(!is_open(1) && is_open(3));
    assert!(store.remove_user("bob", "ann").expect("writable"));
    assert!(!store.remove_user("bob", "ann").expect("writable"));
    assert!(!is_open(3));
    // A login whose old password was verified just before it changed.
    assert!(!begin(store, "ann", 6, later) && !is_open(6));
    assert!(begin_with(store, ("ann", "$new"), 5, later) && is_open(5));
    store.end_session(&[5; 32]).expect("writable");
    assert!(!is_open(5));
}

fn a_user_of_a_provider_has_the_role_of_its_last_login_and_no_password(fixture: &Fixture) {
    let store = &*fixture.store;
    let later = now_ns() + HOUR;
    let is_open = |hash: u8| store.session(&[hash; 32]).expect("readable").is_some();
    let come = |identity: &str, name: &str, scope: Option<Scope>| {
        let user = FederatedUser {
            identity: identity.to_owned(),
            name: name.to_owned(),
            scope,
        };
        store.federate(user).expect("writable")
    };
    let admitted = |name: &str| Federated::Admitted(name.to_owned());
    store.add_user(user("ann", Scope::Admin)).expect("writable");
    // The name of a local user, and later that of another identity, opens no account of theirs.
    assert_eq!(come("oidc:1", "ann", Some(Scope::Admin)), Federated::Taken);
    assert_eq!(come("oidc:1", "bob", None), Federated::Refused);
    assert_eq!(store.user("bob").expect("readable"), None);
    assert_eq!(come("oidc:1", "bob", Some(Scope::Admin)), admitted("bob"));
    assert_eq!(come("oidc:2", "bob", Some(Scope::Admin)), Federated::Taken);
    assert!(begin_with(store, ("bob", "oidc:1"), 1, later) && is_open(1));
    assert!(!begin_with(store, ("ann", "oidc:1"), 2, later) && !begin(store, "bob", 2, later));
    assert!(invite(store, "bob", 1, later));
    // A new name changes nothing; a lower role ends sessions and links.
    assert_eq!(come("oidc:1", "eve", Some(Scope::Admin)), admitted("bob"));
    assert!(is_open(1));
    assert_eq!(come("oidc:1", "bob", Some(Scope::Viewer)), admitted("bob"));
    assert!(!is_open(1) && store.invitation(&[1; 32]).expect("readable").is_none());
    let bob = store.user("bob").expect("readable").expect("it exists");
    assert_eq!(
        (bob.scope, &*bob.created_by),
        (Scope::Viewer, "OpenID Connect")
    );
    assert!(begin_with(store, ("bob", "oidc:1"), 3, later) && is_open(3));
    assert_eq!(come("oidc:1", "bob", None), Federated::Refused);
    assert!(!is_open(3));
    assert!(begin(store, "ann", 4, later) && is_open(4));
}

fn a_user_of_a_provider_gets_no_password_and_stays_logged_in(fixture: &Fixture) {
    let store = &*fixture.store;
    let later = now_ns() + HOUR;
    store.add_user(user("ann", Scope::Admin)).expect("writable");
    let bob = FederatedUser {
        identity: "oidc:1".to_owned(),
        name: "bob".to_owned(),
        scope: Some(Scope::Admin),
    };
    let admitted = Federated::Admitted("bob".to_owned());
    assert_eq!(store.federate(bob.clone()).expect("writable"), admitted);
    assert!(begin_with(store, ("bob", "oidc:1"), 1, later) && invite(store, "bob", 1, later));
    let is_federated = |name: &str| {
        let user = store.user(name).expect("readable");
        user.expect("it exists").is_federated()
    };
    assert!(is_federated("bob") && !is_federated("ann"));
    let audit = store.audit(100).expect("readable");
    assert_eq!(set_password(store, "bob"), PasswordSet::Federated);
    assert_eq!(set_password(store, "eve"), PasswordSet::Unknown);
    assert_eq!(store.audit(100).expect("readable"), audit);
    assert!(is_federated("bob"));
    assert!(store.session(&[1; 32]).expect("readable").is_some());
    assert!(store.invitation(&[1; 32]).expect("readable").is_some());
    assert_eq!(store.federate(bob).expect("writable"), admitted);
}

fn an_invitation_is_used_once_and_decides_the_role(fixture: &Fixture) {
    let store = &*fixture.store;
    let accept = |hash: u8, name: &str| {
        let accepted = store.accept(&[hash; 32], user(name, Scope::Admin));
        accepted.expect("writable")
    };
    store.add_user(user("ann", Scope::Admin)).expect("writable");
    assert!(invite(store, "ann", 1, now_ns() + HOUR));
    assert!(invite(store, "ann", 2, now_ns() - 1));
    assert_eq!(accept(1, "ann"), UserAdded::Taken);
    assert_eq!(accept(1, "bob"), UserAdded::Added);
    assert_eq!(accept(1, "eve"), UserAdded::NotInvited);
    assert_eq!(accept(2, "eve"), UserAdded::NotInvited);
    let bob = store.user("bob").expect("readable").expect("it exists");
    assert_eq!(bob.scope, Scope::Viewer);
    assert_eq!(bob.created_by, "ann");
}

fn invite(store: &dyn Store, actor: &str, hash: u8, expires_ns: i64) -> bool {
    let invitation = Invitation {
        hash: [hash; 32],
        scope: Scope::Viewer,
        expires_ns,
        actor: actor.to_owned(),
        is_first: actor.starts_with("uid"),
    };
    store.invite(invitation).expect("writable")
}

fn an_invitation_ends_with_the_right_to_invite(fixture: &Fixture) {
    let store = &*fixture.store;
    let later = now_ns() + HOUR;
    let is_open = |hash: u8| store.invitation(&[hash; 32]).expect("readable").is_some();
    for (name, scope) in [
        ("ann", Scope::Admin),
        ("bob", Scope::Admin),
        ("eve", Scope::Operator),
    ] {
        store.add_user(user(name, scope)).expect("writable");
    }
    assert!(invite(store, "ann", 1, later) && invite(store, "bob", 2, later));
    assert!(!invite(store, "eve", 3, later) && !invite(store, "nobody", 4, later));
    assert!(is_open(1) && is_open(2) && !is_open(3) && !is_open(4));
    assert!(store.remove_user("ann", "bob").expect("writable"));
    assert!(!is_open(1) && is_open(2));
    assert!(!invite(store, "ann", 5, later) && !is_open(5));
    assert_eq!(set_password(store, "bob"), PasswordSet::Changed);
    assert!(!is_open(2));
}

fn the_latest_first_link_alone_works_and_ends_with_the_first_user(fixture: &Fixture) {
    let store = &*fixture.store;
    let later = now_ns() + HOUR;
    let is_open = |hash: u8| store.invitation(&[hash; 32]).expect("readable").is_some();
    assert!(invite(store, "uid 0", 1, later) && invite(store, "uid 7", 2, later));
    assert!(!is_open(1) && is_open(2));
    store.add_user(user("ann", Scope::Admin)).expect("writable");
    assert!(!is_open(2));
    assert!(!invite(store, "uid 0", 3, later) && !is_open(3));
}

fn a_muted_group_is_hidden_until_its_time_and_keeps_its_comments(fixture: &Fixture) {
    let store = &*fixture.store;
    send(fixture, Some(1), vec![alert(1, "r", "m")]);
    let group = || store.groups(&Filter::default()).expect("readable");
    let id = group()[0].id;
    let triage = |change| store.triage(id, change, "ann").expect("writable");
    assert!(triage(Triage::Assign("bob".to_owned())));
    assert!(triage(Triage::Comment("seen".to_owned())));
    assert!(
        !store
            .triage(GroupId(99), Triage::Mute(None), "ann")
            .expect("writable")
    );
    assert_eq!(group()[0].assignee, "bob");
    assert_eq!(store.comments(id).expect("readable")[0].text, "seen");
    assert!(triage(Triage::Mute(Some(now_ns() + HOUR))));
    assert!(group().is_empty());
    assert!(triage(Triage::Mute(Some(now_ns() - 1))));
    assert_eq!(group().len(), 1);
    let all = Retention {
        before_ns: None,
        max_bytes: Some(0),
    };
    store.prune(all).expect("writable");
    assert!(store.comments(id).expect("readable").is_empty());
}

fn a_tail_goes_on_after_the_last_alert(fixture: &Fixture) {
    let store = &*fixture.store;
    assert_eq!(store.last_stored().expect("readable").0, 0);
    send(fixture, Some(1), vec![alert(9, "a", "m")]);
    let last = store.last_stored().expect("readable");
    send(
        fixture,
        Some(2),
        vec![alert(1, "b", "m"), alert(2, "c", "m")],
    );
    let arrivals = store.stored_after(last, Severity::DEBUG, 10);
    let arrivals = arrivals.expect("readable");
    let rules: Vec<_> = arrivals.rows.iter().map(|row| &*row.rule).collect();
    assert_eq!(rules, ["b", "c"]);
    assert_eq!((arrivals.left_out, arrivals.is_more), (0, false));
    assert_eq!(arrivals.last, store.last_stored().expect("readable"));
}

fn a_flood_does_not_hold_a_tail_up_nor_fill_it_with_bodies(fixture: &Fixture) {
    let store = &*fixture.store;
    let severe = |name: &str| Severity::named(name).expect("a name");
    let of = |severity: Severity, body: &str| NewAlert {
        severity,
        body: body.to_owned(),
        ..alert(1, "r", "m")
    };
    let long = format!("{{\"output\":\"{}\"}}", "x".repeat(100_000));
    let mut flood = vec![of(Severity::DEBUG, &long); 300];
    flood.push(of(severe("Critical"), "{\"output\":\"it\",\"more\":1}"));
    flood.push(of(severe("Critical"), "no JSON"));
    send(fixture, Some(1), flood);
    let last = store.last_stored().expect("readable");
    let after = |least, limit| {
        let arrivals = store.stored_after(AlertId(0), least, limit);
        arrivals.expect("readable")
    };
    let critical = after(severe("Critical"), 100);
    let bodies: Vec<_> = critical.rows.iter().map(|row| &*row.body).collect();
    assert_eq!(bodies, ["{\"output\":\"it\"}", "{}"]);
    assert_eq!((critical.left_out, critical.last), (0, last));
    let all = after(Severity::DEBUG, 100);
    assert_eq!((all.rows.len(), all.left_out, all.last), (100, 202, last));
    assert!(all.rows.iter().all(|row| row.body.len() < 1000));
}
