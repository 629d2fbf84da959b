//! A private network without a route out, which owns the addresses that actions contact.
//!
//! Nothing is ever sent to the real owner of such an address unless the user allows that address.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;

use sys::clone::CloneFlags;
use workload::Error;

use super::netlink::{LOOPBACK, Network};
use super::{Action, Stop};

/// An address for documentation (RFC 5737), which stands for any host of the Internet.
pub(crate) const PUBLIC: &str = "203.0.113.5";

/// The address of the metadata service of clouds.
pub(crate) const METADATA: &str = "169.254.169.254";

/// An address of a private network.
pub(crate) const PRIVATE: &str = "10.2.3.4";

/// Index and name of the dummy interface.
const DUMMY: (i32, &str) = (100, "tollgate0");

/// Moves this process to a network namespace that has the actions' addresses, except those that the user allows
/// in the real network.
pub(super) fn separate(actions: &[&Action], allowed: &[IpAddr]) -> Result<(), Stop> {
    let mut wanted = BTreeSet::new();
    for text in actions.iter().flat_map(|action| action.addresses()) {
        let address: IpAddr = text.parse().expect("the table's addresses are addresses");
        if !allowed.contains(&address) {
            wanted.insert(address);
        }
    }
    own(&wanted)
}

/// Moves this process to a network namespace that has these addresses.
pub(super) fn own(wanted: &BTreeSet<IpAddr>) -> Result<(), Stop> {
    if wanted.is_empty() {
        return Ok(());
    }
    own_network(wanted).map_err(|error| {
        let addresses: Vec<_> = wanted.iter().map(IpAddr::to_string).collect();
        Stop::Skipped(format!(
            "needs a private network that has {} ({}); `--allow-network ADDRESS` uses the real one",
            addresses.join(" and "),
            error.chain()
        ))
    })
}

fn own_network(addresses: &BTreeSet<IpAddr>) -> Result<(), Error> {
    if sys::namespace::unshare(CloneFlags::NEWNET.0).is_err() {
        with_user_namespace()?;
    }
    let network = Network::new().map_err(Error::call("talk to the network"))?;
    network
        .bring_up(LOOPBACK)
        .map_err(Error::call("bring up the loopback interface"))?;
    // Not every kernel has the driver. Addresses on the loopback interface serve as well: this namespace has no
    // route out either.
    let interface = match network.make_dummy(DUMMY.0, DUMMY.1) {
        Ok(()) => DUMMY.0,
        Err(_no_driver) => LOOPBACK,
    };
    // Lets every user bind every port here. If that fails, low ports need root as usual.
    let _ = fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0");
    for address in addresses {
        network
            .add_address(interface, *address)
            .map_err(Error::call("add an address"))?;
    }
    Ok(())
}

/// Enters the user namespace that ordinary users need for a network namespace. Keeps user and group ids.
fn with_user_namespace() -> Result<(), Error> {
    let (user, group) = (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    sys::namespace::unshare(CloneFlags::NEWUSER.0 | CloneFlags::NEWNET.0)
        .map_err(Error::call("make a network namespace"))?;
    for (file, text) in [
        ("/proc/self/setgroups", "deny".to_owned()),
        ("/proc/self/uid_map", format!("{user} {user} 1\n")),
        ("/proc/self/gid_map", format!("{group} {group} 1\n")),
    ] {
        fs::write(file, text).map_err(Error::file("write", file))?;
    }
    Ok(())
}
