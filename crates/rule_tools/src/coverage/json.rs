//! Coverage for programs: our own object, and a layer of the ATT&CK Navigator.

use serde_json::{Value, json};

use super::{Coverage, Row, RuleSight, names};
use crate::attack::{TACTICS, VERSION};

/// Version of [`Coverage::object`]. It grows when a key changes its meaning or goes.
const FORMAT: u32 = 1;

impl RuleSight<'_> {
    fn object(&self) -> Value {
        json!({
            "name": &*self.rule.name,
            "enabled": self.rule.enabled,
            "level": self.rule.level().name(),
            "priority": self.rule.priority.name(),
            "engines": names(self.sight.engines()),
            "sees": self.sight.word(),
            "reason": self.sight.why_not().or_else(|| self.sight.limit()),
        })
    }
}

impl Coverage<'_> {
    pub(super) fn object(&self) -> Value {
        let tactics = TACTICS.map(|tactic| {
            let (covered, all) = self.count(Some(tactic));
            json!({ "name": tactic, "covered": covered, "techniques": all })
        });
        let techniques = self.rows.iter().map(|row| {
            json!({
                "id": row.technique.id,
                "name": row.technique.name,
                "tactics": row.technique.tactics().collect::<Vec<_>>(),
                "platform": row.technique.platform.name(),
                "covered": row.is_covered(),
                "rules": row.rules.iter().map(RuleSight::object).collect::<Vec<_>>(),
            })
        });
        let missing = self.abilities.missing.iter().map(|missing| {
            json!({ "engine": missing.kind.name(), "reason": missing.why, "fix": missing.fix })
        });
        let levels = self
            .levels()
            .map(|(level, rules)| (level.name().to_owned(), rules.into()));
        let (covered, all) = self.count(None);
        json!({
            "version": FORMAT,
            "attack": VERSION,
            "engines": names(&self.abilities.engines),
            "level": self.level.name(),
            "levels": levels.collect::<serde_json::Map<String, Value>>(),
            "missing_engines": missing.collect::<Vec<_>>(),
            "limits": self.abilities.limits,
            "covered": covered,
            "of": all,
            "tactics": tactics,
            "techniques": techniques.collect::<Vec<_>>(),
            "rules": self.rules.iter().map(RuleSight::object).collect::<Vec<_>>(),
            "untagged": self.untagged(),
            "unknown_tags": self.unknown,
        })
    }

    /// Returns a layer in version 4.5 of the Navigator's format. The score of a technique is the number of its rules
    /// that can alert; techniques whose rules all cannot are disabled.
    pub(super) fn layer(&self) -> Value {
        let score = |row: &Row<'_>| row.seen().count();
        let named = self.rows.iter().filter(|row| !row.rules.is_empty());
        let techniques = named.map(|row| {
            json!({
                "techniqueID": row.technique.id,
                "score": score(row),
                "enabled": row.is_covered(),
                "comment": comment(row),
                "showSubtechniques": true,
            })
        });
        let most = self.rows.iter().map(score).max().unwrap_or(0).max(1);
        let engines = names(&self.abilities.engines).join(", ");
        json!({
            "name": "tollgate rules",
            "description": format!("Techniques that rules name; engines: {engines}"),
            "domain": "enterprise-attack",
            "versions": { "attack": VERSION, "navigator": "5.1.0", "layer": "4.5" },
            "filters": { "platforms": ["Linux", "Containers"] },
            "hideDisabled": false,
            "techniques": techniques.collect::<Vec<_>>(),
            "gradient": { "colors": ["#e5f2ff", "#1f6feb"], "minValue": 0, "maxValue": most },
        })
    }
}

/// Returns the rules of a technique, with the reasons of those that cannot alert or see a part.
fn comment(row: &Row<'_>) -> String {
    let seen = row.seen().map(|entry| match entry.sight.limit() {
        Some(limit) => format!("{} (in part: {limit})", entry.rule.name),
        None => entry.rule.name.to_string(),
    });
    let unseen = row
        .unseen()
        .map(|(rule, why)| format!("not seen: {} ({why})", rule.name));
    seen.chain(unseen).collect::<Vec<_>>().join("; ")
}
