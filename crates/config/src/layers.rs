//! Merges the settings of several files: a file of the machine, the user's, one that is named.

use yaml::settings::{Node, Value};

/// Merges `upper` into `base`. Groups are merged key by key; any other value of `upper`, lists included, replaces that of
/// `base`. An empty group sets nothing.
pub(crate) fn merge(base: &mut Node, upper: Node) {
    match (&mut base.value, upper.value) {
        (Value::Map(entries), Value::Map(more)) => {
            for new in more {
                match entries.iter_mut().find(|entry| entry.key == new.key) {
                    Some(old) => {
                        old.origin = new.origin;
                        merge(&mut old.node, new.node);
                    }
                    None => entries.push(new),
                }
            }
        }
        (Value::Map(_), Value::Null) => {}
        (value, new) => {
            *value = new;
            base.origin = upper.origin;
        }
    }
}

#[cfg(test)]
mod tests {
    use yaml::settings;

    use super::*;

    fn merged(base: &str, upper: &str) -> Node {
        let read = |name, text| settings::read(name, text).expect("good YAML");
        let mut node = read("base", base);
        merge(&mut node, read("upper", upper));
        node
    }

    fn at<'n>(node: &'n Node, path: &str) -> &'n Node {
        path.split('.').fold(node, |node, name| {
            &node.entry(name).unwrap_or_else(|| panic!("no {name}")).node
        })
    }

    #[test]
    fn a_later_file_changes_only_the_keys_that_it_has() {
        let base = "outputs: {rate: 1, max_burst: 7}\nrules_files: [a, b]\npriority: error\n";
        let node = merged(
            base,
            "outputs:\n  rate: 2\nrules_files: [c]\njson_output: true\n",
        );
        assert_eq!(at(&node, "outputs.rate").integer(), Ok(2));
        assert_eq!(at(&node, "outputs.rate").origin.to_string(), "upper:2:9");
        assert_eq!(at(&node, "outputs.max_burst").integer(), Ok(7));
        assert_eq!(
            at(&node, "outputs.max_burst").origin.to_string(),
            "base:1:31"
        );
        assert_eq!(at(&node, "rules_files").texts(), Ok(vec!["c".to_owned()]));
        assert_eq!(at(&node, "priority").text(), Ok("error"));
        assert_eq!(at(&node, "json_output").boolean(), Ok(true));
    }

    #[test]
    fn an_empty_group_sets_nothing_and_a_wrong_value_stays_wrong() {
        let node = merged("outputs: {rate: 1}", "outputs:\n");
        assert_eq!(at(&node, "outputs.rate").integer(), Ok(1));
        let node = merged("outputs: {rate: 1}", "outputs: 5\n");
        assert!(at(&node, "outputs").group().is_err());
    }
}
