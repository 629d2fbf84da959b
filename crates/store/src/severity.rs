//! Severities of alerts.

/// Severity of an alert, Falco's priorities in syslog's order: 0 is the most severe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Severity(u8);

/// Names of the severities, as Falco writes them.
const SEVERITIES: [&str; 8] = [
    "Emergency",
    "Alert",
    "Critical",
    "Error",
    "Warning",
    "Notice",
    "Informational",
    "Debug",
];

impl Severity {
    /// The least severe.
    pub const DEBUG: Self = Self(7);

    /// Returns the severity with this number, 0 to 7.
    pub fn new(number: u8) -> Option<Self> {
        (usize::from(number) < SEVERITIES.len()).then_some(Self(number))
    }

    /// Returns the severity with this name, in any case. `Info` is `Informational`.
    pub fn named(name: &str) -> Option<Self> {
        let name = if name.eq_ignore_ascii_case("info") {
            "Informational"
        } else {
            name
        };
        let at = SEVERITIES
            .iter()
            .position(|known| known.eq_ignore_ascii_case(name))?;
        u8::try_from(at).ok().map(Self)
    }

    /// Returns the name, as Falco writes it.
    pub fn name(self) -> &'static str {
        SEVERITIES[usize::from(self.0)]
    }

    /// Returns the number, 0 for the most severe.
    pub fn number(self) -> u8 {
        self.0
    }

    /// Returns all severities, the most severe first.
    pub fn all() -> impl Iterator<Item = Self> {
        (0_u8..8).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn severities_have_the_names_of_falco_and_the_order_of_syslog() {
        assert_eq!(Severity::named("critical"), Severity::new(2));
        assert_eq!(Severity::named("Info"), Severity::named("Informational"));
        assert_eq!(Severity::named("none"), None);
        assert_eq!(Severity::new(8), None);
        for severity in Severity::all() {
            assert_eq!(Severity::named(severity.name()), Some(severity));
        }
        assert!(Severity::named("Emergency") < Severity::named("Debug"));
    }
}
