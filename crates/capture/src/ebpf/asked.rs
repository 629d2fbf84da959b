//! What rules ask of a call beyond its registers, and what is asked in place of two demands.

use std::collections::BTreeSet;
use std::net::IpAddr;

use event::{Interest, PathPattern, SocketFamily};

/// Demands of some rules.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Asked {
    pub(super) paths: Option<BTreeSet<PathPattern>>,
    pub(super) dotted: bool,
    pub(super) names: Option<BTreeSet<Vec<u8>>>,
    pub(super) ports: Option<BTreeSet<u16>>,
    pub(super) networks: Option<BTreeSet<(IpAddr, u8)>>,
    pub(super) families: Option<BTreeSet<SocketFamily>>,
    pub(super) contained: Option<bool>,
}

/// Properties that can be checked for a kind of calls.
#[derive(Clone, Copy, Debug)]
pub(super) struct VisibleFields {
    pub(super) opens: bool,
    pub(super) paths: bool,
    pub(super) connection: bool,
}

impl Asked {
    pub(super) fn new(interest: &Interest, visible: VisibleFields) -> Self {
        let Interest {
            any_of: _,
            failed: _,
            succeeded: _,
            results: _,
            errors: _,
            paths,
            dotted,
            names,
            ports,
            networks,
            families,
            contained,
        } = interest.clone();
        Self {
            paths: paths.filter(|_| visible.opens || visible.paths),
            dotted: dotted && visible.opens,
            names,
            ports: ports.filter(|_| visible.connection),
            networks: networks.filter(|_| visible.connection),
            families: families.filter(|_| visible.connection),
            contained,
        }
    }

    /// Returns the demands that accept what either accepts. They also accept the value of one with that of the other.
    pub(super) fn or(&self, other: &Self) -> Self {
        Self {
            paths: union(&self.paths, &other.paths),
            dotted: self.dotted && other.dotted,
            names: union(&self.names, &other.names),
            ports: union(&self.ports, &other.ports),
            networks: union(&self.networks, &other.networks),
            families: union(&self.families, &other.families),
            contained: self.contained.filter(|_| self.contained == other.contained),
        }
    }

    /// Returns what [`Asked::or`] loses: how many properties no longer matter, how many more values stand beside values
    /// of another property that they did not stand beside, and how many values there are in all.
    pub(super) fn lost_by_or(&self, other: &Self) -> (usize, usize, usize) {
        let parts = [
            lost(&self.paths, &other.paths),
            lost(&self.names, &other.names),
            lost(&self.ports, &other.ports),
            lost(&self.networks, &other.networks),
            lost(&self.families, &other.families),
        ];
        let flags = [
            self.dotted != other.dotted,
            self.contained != other.contained,
        ];
        let parts = parts.into_iter();
        let (ignored, mixed, values) = parts.fold((0, 0, 0), |all, part| {
            (all.0 + part.0, all.1 + part.1, all.2 + part.2)
        });
        let flags = flags.into_iter().filter(|differs| *differs).count();
        (ignored + flags, mixed, values)
    }
}

/// Returns the values of both; `None`, which is any value, if one of them is that.
fn union<T: Ord + Clone>(
    one: &Option<BTreeSet<T>>,
    other: &Option<BTreeSet<T>>,
) -> Option<BTreeSet<T>> {
    Some(one.as_ref()? | other.as_ref()?)
}

/// Returns what [`union`] loses: 1 if it no longer restricts what one of them restricts; 1 if both restrict, to different
/// values; the number of values.
fn lost<T: Ord>(one: &Option<BTreeSet<T>>, other: &Option<BTreeSet<T>>) -> (usize, usize, usize) {
    match (one, other) {
        (None, None) => (0, 0, 0),
        (Some(one), Some(other)) => (0, usize::from(one != other), one.len() + other.len()),
        _ => (1, 0, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_demands_accept_what_either_accepts() {
        let both = [false, true].map(Some).into_iter().chain([None]);
        let contained: Vec<Option<bool>> = both.collect();
        let ports = [
            None,
            Some([1].into()),
            Some([1, 2].into()),
            Some([3].into()),
        ];
        let mut all = Vec::new();
        for contained in &contained {
            for ports in &ports {
                all.push(Asked {
                    contained: *contained,
                    ports: ports.clone(),
                    dotted: ports.is_some(),
                    ..Asked::default()
                });
            }
        }
        let accepts = |asked: &Asked, is_contained: bool, port: u16, dotted: bool| {
            asked.contained.is_none_or(|wanted| wanted == is_contained)
                && asked
                    .ports
                    .as_ref()
                    .is_none_or(|ports| ports.contains(&port))
                && (dotted || !asked.dotted)
        };
        for (one, other) in all
            .iter()
            .flat_map(|one| all.iter().map(move |other| (one, other)))
        {
            let joined = one.or(other);
            for place in 0..16_u16 {
                let (is_contained, dotted, port) = (place & 1 == 1, place & 2 == 2, place / 4);
                let is_wanted = [one, other]
                    .into_iter()
                    .any(|asked| accepts(asked, is_contained, port, dotted));
                assert!(!is_wanted || accepts(&joined, is_contained, port, dotted));
            }
            assert_eq!(one.or(one), *one);
        }
    }
}
