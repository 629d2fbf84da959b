//! `append_output`: text and fields added to alerts.

use rules::{AppendOutput, ExtraField};
use yaml::settings::{Node, Problem, Value};

use super::Config;

/// Fields that the built-in plugin `container` suggests to print.
const SUGGESTED: [&str; 6] = [
    "container.id",
    "container.name",
    "container.image.repository",
    "container.image.tag",
    "k8s.pod.name",
    "k8s.ns.name",
];

/// Returns `container_id=%container.id container_name=..`.
fn suggested_output() -> String {
    let field = |field: &str| format!("{}=%{field}", field.replace('.', "_"));
    SUGGESTED.map(field).join(" ")
}

pub(crate) fn append_output(config: &mut Config, node: &Node) -> Result<(), Problem> {
    // As in Falco, one entry needs no list around it.
    let entries = match &node.value {
        Value::Map(_) => std::slice::from_ref(node),
        _ => node.list()?,
    };
    let entries = entries.iter().map(append_entry);
    let entries: Vec<AppendOutput> = entries.collect::<Result<_, _>>()?;
    // An entry may add nothing, such as `suggested_output: false`.
    let adds = |entry: &AppendOutput| *entry != AppendOutput::default();
    config.append_output.clear();
    for entry in entries.into_iter().filter(adds) {
        // `-pk` asks for what Falco's own configuration file contains already.
        if !config.append_output.contains(&entry) {
            config.append_output.push(entry);
        }
    }
    Ok(())
}

fn append_entry(node: &Node) -> Result<AppendOutput, Problem> {
    let mut append = AppendOutput::default();
    let mut texts = Vec::new();
    for entry in node.group()? {
        match entry.key.as_str() {
            "extra_fields" => {
                let fields = entry.node.list()?.iter().map(extra_field);
                append.extra_fields = fields.collect::<Result<_, _>>()?;
            }
            "extra_output" => texts.push(entry.node.text()?.to_owned()),
            "match" => append_match(&mut append, &entry.node)?,
            "suggested_output" if entry.node.boolean()? => texts.push(suggested_output()),
            "suggested_output" => {}
            other => {
                return Err(
                    Problem::new(&entry.origin, format!("unknown key `{other}`"))
                        .help("the keys are match, extra_output, extra_fields, suggested_output"),
                );
            }
        }
    }
    append.extra_output = (!texts.is_empty()).then(|| texts.join(" "));
    Ok(append)
}

/// Parses `evt.hostname`, or `name: text with %evt.hostname`.
fn extra_field(node: &Node) -> Result<ExtraField, Problem> {
    let Value::Map(entries) = &node.value else {
        return node.text().map(|name| ExtraField::Field(name.to_owned()));
    };
    match entries.as_slice() {
        [entry] => Ok(ExtraField::Formatted {
            name: entry.key.clone(),
            format: entry.node.text()?.to_owned(),
        }),
        _ => Err(
            Problem::new(&node.origin, "expected one name with its text")
                .help("start each field with `- `"),
        ),
    }
}

fn append_match(append: &mut AppendOutput, node: &Node) -> Result<(), Problem> {
    for entry in node.group()? {
        match entry.key.as_str() {
            "rule" => append.rule = Some(entry.node.text()?.to_owned()),
            "source" => append.source = Some(entry.node.text()?.to_owned()),
            "tags" => {
                let tags = entry
                    .node
                    .list()?
                    .iter()
                    .map(|tag| tag.text().map(str::to_owned));
                append.tags = tags.collect::<Result<_, _>>()?;
            }
            other => {
                return Err(
                    Problem::new(&entry.origin, format!("unknown key `{other}`"))
                        .help("the keys are rule, source, tags"),
                );
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_entry_needs_no_list() {
        let node = yaml::settings::read("c", "extra_output: x\n").expect("good YAML");
        let mut config = Config::default();
        append_output(&mut config, &node).expect("good settings");
        assert_eq!(config.append_output[0].extra_output.as_deref(), Some("x"));
    }

    #[test]
    fn suggested_fields_are_printed_after_an_extra_output() {
        let text = "- extra_output: on %evt.hostname\n  suggested_output: true\n- suggested_output: false\n";
        let node = yaml::settings::read("c", text).expect("good YAML");
        let mut config = Config::default();
        append_output(&mut config, &node).expect("good settings");
        let [entry] = &config.append_output[..] else {
            panic!("{:?}", config.append_output)
        };
        assert_eq!(
            entry.extra_output.as_deref(),
            Some(
                "on %evt.hostname container_id=%container.id container_name=%container.name \
                 container_image_repository=%container.image.repository \
                 container_image_tag=%container.image.tag k8s_pod_name=%k8s.pod.name \
                 k8s_ns_name=%k8s.ns.name"
            )
        );
    }
}
