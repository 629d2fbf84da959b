//! `--list-plugins` and `--plugin-info`.

use crate::catalogue::LoadedPlugin;

/// Returns what `--list-plugins` prints about a plugin; with `is_full` what `--plugin-info` prints.
#[must_use]
pub fn plugin_info(plugin: &LoadedPlugin, is_full: bool) -> String {
    let description = &plugin.description;
    let mut out = format!(
        "Name: {}\nDescription: {}\nContact: {}\nVersion: {}\nCapabilities: \n",
        description.name, description.description, description.contact, description.version
    );
    let can = description.capabilities;
    if can.sourcing {
        let (id, source) = (description.id, &description.source);
        out.push_str(&format!(
            "  - Event Sourcing (ID={id}, source='{source}')\n"
        ));
    }
    if can.extraction {
        out.push_str("  - Field Extraction\n");
    }
    if can.parsing {
        out.push_str("  - Event Parsing\n");
    }
    if can.async_events {
        out.push_str("  - Async Events\n");
    }
    if is_full {
        out.push_str(&match description.schema.as_str() {
            "" => "\nInit config schema type: Not available\n".to_owned(),
            schema => format!("\nInit config schema type: JSON\n{}\n", schema.trim_end()),
        });
    }
    out
}
