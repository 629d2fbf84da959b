//! Builds conditions: parses them, replaces macro and list names, adds exceptions.

use std::sync::Arc;

use super::collect::{CollectedMacro, CollectedRule, Collector, NamedItems, Suggestions};
use super::exception::{list_items, summary, with_exceptions};
use super::item::{ItemKind, ListItem};
use super::written::written;
use crate::condition::ast::{Compare, Expr, ExprKind, Literal, OpClass, SourceId, Span, Value};
use crate::condition::parser::parse;
use crate::diagnostic::{Code, Diagnostic};
use crate::ruleset::{ConditionSource, List, Macro, Output, Rule, Ruleset};
use crate::sources::Sources;
use yaml::SourceText;

/// Maximum number of checks and list values in one condition with its macros expanded; ten times as many in
/// all conditions together. Macros of macros of macros could otherwise exhaust memory from a few lines.
pub const MAX_CONDITION_NODES: usize = 200_000;

/// Maximum nesting of a condition with its macros expanded, so that no recursive walk overflows the stack.
pub const MAX_CONDITION_DEPTH: usize = 400;

/// Maximum number of values in all lists together, with nested lists expanded.
pub const MAX_LIST_ITEMS: usize = 1_000_000;

/// Maximum length of a chain of macros or lists that refer to ones defined after them.
const MAX_CHAIN: usize = 64;

pub(super) fn resolve(collector: &Collector, diagnostics: &mut Vec<Diagnostic>) -> Ruleset {
    let mut resolver = Resolver::new(collector);
    let lists: Vec<_> = (0..collector.lists.len())
        .map(|at| resolver.list(at))
        .collect();
    let macros: Vec<_> = (0..collector.macros.len())
        .map(|at| resolver.macro_body(at))
        .collect();
    let rules = collector
        .rules
        .iter()
        .filter_map(|rule| resolver.rule(rule))
        .collect();

    let lists = collector
        .lists
        .iter()
        .zip(lists)
        .enumerate()
        .map(|(at, (item, items))| List {
            name: item.name.as_str().into(),
            written: entries(&collector.lists, item, false),
            lists: entries(&collector.lists, item, true),
            items: items.to_vec(),
            used: resolver.lists_used[at],
            location: item.location.clone(),
        });
    let lists: Vec<List> = lists.collect();
    let macros =
        collector
            .macros
            .iter()
            .zip(macros)
            .enumerate()
            .filter_map(|(at, (item, body))| {
                let body = body?;
                Some(Macro {
                    name: item.item.name.as_str().into(),
                    condition: body.expr.clone(),
                    written: body.written.clone(),
                    used: resolver.macros_used[at],
                    location: item.item.location.clone(),
                })
            });
    let macros: Vec<Macro> = macros.collect();

    diagnostics.append(&mut resolver.problems);
    // A failed item may be the only user of another, so unused items are reported only without errors.
    if !diagnostics.iter().any(Diagnostic::is_error) {
        diagnostics.extend(unused(&macros, &lists));
    }
    Ruleset {
        rules,
        macros,
        lists,
        required_engine_version: collector.engine_version,
        required_plugins: collector.plugins.clone(),
        sources: resolver.sources,
    }
}

/// Returns the entries of a list that are names of other lists, or those that are not.
fn entries(lists: &NamedItems<ListItem>, item: &ListItem, names: bool) -> Vec<String> {
    let is_name = |text: &str| text != item.name && lists.get(text).is_some();
    let entries = item.items.iter().map(SourceText::text);
    entries
        .filter(|text| is_name(text) == names)
        .map(str::to_owned)
        .collect()
}

fn unused(macros: &[Macro], lists: &[List]) -> Vec<Diagnostic> {
    let macros = macros.iter().filter(|item| !item.used).map(|item| {
        let message = "no rule and no other macro refers to it";
        Diagnostic::new(Code::UnusedMacro, item.location.clone(), message)
            .in_item(format!("macro {}", item.name))
    });
    let lists = lists.iter().filter(|item| !item.used).map(|item| {
        let message = "no rule, macro or other list refers to it";
        Diagnostic::new(Code::UnusedList, item.location.clone(), message)
            .in_item(format!("list {}", item.name))
    });
    macros.chain(lists).collect()
}

struct Resolver<'c> {
    collector: &'c Collector,
    sources: Sources,
    problems: Vec<Diagnostic>,
    lists: Vec<State<Arc<[Literal]>>>,
    lists_used: Vec<bool>,
    macros: Vec<State<Arc<Resolved>>>,
    macros_used: Vec<bool>,
    list_items: usize,
    /// Number of nodes of all conditions so far.
    nodes: usize,
    /// Number of lists or macros that are being resolved.
    chain: usize,
    guesses: Suggestions,
    /// Item being resolved, for messages.
    context: String,
}

#[derive(Clone)]
enum State<T> {
    New,
    /// Being resolved; a reference to it is a cycle.
    Active,
    Done(T),
    Broken,
}

/// A condition without unresolved names.
struct Resolved {
    expr: Expr,
    nodes: usize,
    written: ConditionSource,
}

/// Expansion of the names in one condition.
struct Expansion {
    /// Position before which a macro must be first defined to be visible.
    visible: usize,
    nodes: usize,
    failed: bool,
    /// Whether a limit is exceeded, so that nothing more is added.
    full: bool,
}

impl<'c> Resolver<'c> {
    fn new(collector: &'c Collector) -> Self {
        let (lists, macros) = (collector.lists.len(), collector.macros.len());
        Self {
            collector,
            sources: Sources::default(),
            problems: Vec::new(),
            lists: vec![State::New; lists],
            lists_used: vec![false; lists],
            macros: vec![State::New; macros],
            macros_used: vec![false; macros],
            list_items: 0,
            nodes: 0,
            chain: 0,
            guesses: Suggestions::default(),
            context: String::new(),
        }
    }

    // Lists.

    fn list(&mut self, at: usize) -> Arc<[Literal]> {
        match &self.lists[at] {
            State::Done(items) => return Arc::clone(items),
            State::Active | State::Broken => return Arc::new([]),
            State::New => {}
        }
        self.lists[at] = State::Active;
        self.chain += 1;
        let list = self.collector.lists.at(at);
        let context = std::mem::replace(&mut self.context, format!("list {}", list.name));
        let mut items = Vec::new();
        for text in &list.items {
            self.list_entry(at, text, &mut items);
            if self.list_items + items.len() > MAX_LIST_ITEMS {
                let message = format!("the lists have more than {MAX_LIST_ITEMS} values together");
                self.problem(Diagnostic::new(
                    Code::Validate,
                    text.start().clone(),
                    message,
                ));
                items.clear();
                break;
            }
        }
        self.list_items += items.len();
        let items: Arc<[Literal]> = items.into();
        self.lists[at] = State::Done(Arc::clone(&items));
        self.chain -= 1;
        self.context = context;
        items
    }

    /// Resolves one entry: the name of another list, or values.
    fn list_entry(&mut self, of: usize, text: &SourceText, items: &mut Vec<Literal>) {
        // A list may have its own name as a value: `list: docker` with the item `docker`.
        match self
            .collector
            .lists
            .position(text.text())
            .filter(|&other| other != of)
        {
            None => items.extend(list_items(text, &mut self.sources)),
            Some(other) if matches!(self.lists[other], State::Active) => {
                let message = format!("list `{}` contains itself by way of this list", text.text());
                self.problem(Diagnostic::new(
                    Code::Validate,
                    text.start().clone(),
                    message,
                ));
            }
            Some(_) if self.chain >= MAX_CHAIN => {
                let message = format!("more than {MAX_CHAIN} lists refer to later lists in a row");
                let problem = Diagnostic::new(Code::Validate, text.start().clone(), message);
                self.problem(problem.with_help("define lists before the lists that name them"));
            }
            Some(other) => {
                self.lists_used[other] = true;
                items.extend_from_slice(&self.list(other));
            }
        }
    }

    // Macros and rules.

    fn macro_body(&mut self, at: usize) -> Option<Arc<Resolved>> {
        match &self.macros[at] {
            State::Done(resolved) => return Some(Arc::clone(resolved)),
            State::Active | State::Broken => return None,
            State::New => {}
        }
        self.macros[at] = State::Active;
        self.chain += 1;
        let CollectedMacro { item, last, .. } = self.collector.macros.at(at);
        let context = std::mem::replace(&mut self.context, format!("macro {}", item.name));
        let source = self.sources.add(item.condition.clone());
        let resolved = self.parse(&item.condition, source);
        let resolved = resolved
            .and_then(|expr| self.expand_all(expr, &item.condition, *last))
            .map(Arc::new);
        self.macros[at] = match &resolved {
            Some(resolved) => State::Done(Arc::clone(resolved)),
            None => State::Broken,
        };
        self.chain -= 1;
        self.context = context;
        resolved
    }

    fn rule(&mut self, rule: &CollectedRule) -> Option<Rule> {
        let item = &rule.item;
        if rule.unknown_source {
            return None;
        }
        self.context = format!("rule {}", item.name);
        let source = self.sources.add(item.condition.clone());
        let condition = self.parse(&item.condition, source)?;
        let mut problems = Vec::new();
        let condition = with_exceptions(
            condition,
            &item.exceptions,
            &mut self.sources,
            &mut problems,
        );
        let sound = problems.is_empty();
        problems
            .into_iter()
            .for_each(|problem| self.problem(problem));
        let resolved = self
            .expand_all(condition, &item.condition, usize::MAX)
            .filter(|_| sound)?;
        let output = Output {
            text: item.output.text().to_owned(),
            source: self.sources.add(item.output.clone()),
        };
        Some(Rule {
            name: item.name.as_str().into(),
            condition: resolved.expr,
            written: resolved.written,
            output,
            desc: item.desc.clone(),
            priority: item.priority,
            source: item.source.clone(),
            tags: item.tags.clone(),
            enabled: item.enabled,
            is_enabled_by_name: item.is_enabled_by_name,
            warn_evttypes: item.warn_evttypes,
            skip_if_unknown_filter: item.skip_if_unknown_filter,
            exceptions: item.exceptions.iter().map(summary).collect(),
            capture: item.capture,
            capture_duration_ms: item.capture_duration_ms,
            count: item.count.clone(),
            risk: item.risk,
            appended: item.appended.clone(),
            location: item.location.clone(),
        })
    }

    fn parse(&mut self, text: &SourceText, source: SourceId) -> Option<Expr> {
        match parse(text.text(), source) {
            Ok(expr) => Some(expr),
            Err(error) => {
                self.compile_problem(error.span, error.message, error.help);
                None
            }
        }
    }

    // Expansion.

    fn expand_all(
        &mut self,
        mut expr: Expr,
        text: &SourceText,
        visible: usize,
    ) -> Option<Resolved> {
        let is_list = |name: &str| self.collector.lists.get(name).is_some();
        let written = written(text.text(), &expr, &is_list);
        let mut expansion = Expansion {
            visible,
            nodes: 0,
            failed: false,
            full: false,
        };
        self.expand(&mut expr, &mut expansion);
        if expansion.failed {
            return None;
        }
        let depth = depth(&expr);
        self.nodes += expansion.nodes;
        if depth > MAX_CONDITION_DEPTH {
            let message =
                format!("nested deeper than {MAX_CONDITION_DEPTH} levels with its macros");
            self.compile_problem(expr.span, message, None);
            return None;
        }
        Some(Resolved {
            expr,
            nodes: expansion.nodes,
            written,
        })
    }

    fn expand(&mut self, expr: &mut Expr, expansion: &mut Expansion) {
        if !self.count(1, expr.span, expansion) {
            return;
        }
        match &mut expr.kind {
            ExprKind::And(children) | ExprKind::Or(children) => {
                children
                    .iter_mut()
                    .for_each(|child| self.expand(child, expansion));
            }
            ExprKind::Not(child) => self.expand(child, expansion),
            ExprKind::Exists(_) | ExprKind::Expanded { .. } => {}
            ExprKind::Compare(compare) => self.expand_lists(compare, expansion),
            ExprKind::Macro(name) => {
                let name = std::mem::take(name);
                if let Some(kind) = self.expand_macro(&name, expr.span, expansion) {
                    expr.kind = kind;
                } else {
                    expansion.failed = true;
                }
            }
        }
    }

    fn expand_macro(
        &mut self,
        name: &str,
        span: Span,
        expansion: &mut Expansion,
    ) -> Option<ExprKind> {
        let position = self.collector.macros.position(name);
        let Some(at) =
            position.filter(|&at| self.collector.macros.at(at).first < expansion.visible)
        else {
            self.undefined_macro(name, position.is_some(), span);
            return None;
        };
        self.macros_used[at] = true;
        if matches!(self.macros[at], State::Active) {
            let message = format!("macro `{name}` refers to itself by way of this one");
            self.invalid(span, message, None);
            return None;
        }
        if self.chain > MAX_CHAIN {
            let message = format!("more than {MAX_CHAIN} macros refer to later macros in a row");
            self.invalid(span, message, None);
            return None;
        }
        let body = self.macro_body(at)?;
        if !self.count(body.nodes, span, expansion) {
            return None;
        }
        Some(ExprKind::Expanded {
            name: name.into(),
            body: Box::new(body.expr.clone()),
        })
    }

    fn undefined_macro(&mut self, name: &str, later: bool, span: Span) {
        if self.collector.is_broken(ItemKind::Macro, name) {
            return;
        }
        if later {
            let message = format!("macro `{name}` is defined after this one");
            let help = "a macro can refer to earlier macros only: move one of them";
            self.invalid(span, message, Some(help.to_owned()));
            return;
        }
        let help = if self.collector.lists.get(name).is_some() {
            Some(format!(
                "`{name}` is a list: compare a field with it, `FIELD in ({name})`"
            ))
        } else {
            self.guesses
                .closest(name, self.collector.macros.names())
                .map(|near| format!("did you mean `{near}`?"))
        };
        self.invalid(span, format!("undefined macro `{name}`"), help);
    }

    fn expand_lists(&mut self, compare: &mut Compare, expansion: &mut Expansion) {
        let span = compare.right.span();
        match &mut compare.right {
            Value::Operand(_) => {}
            Value::Literal(literal) => {
                let Some(items) = self.named_list(literal) else {
                    return;
                };
                if let [item] = &items[..] {
                    *literal = item.clone();
                    return;
                }
                let name = literal.text.to_lossy().into_owned();
                let op = compare.op.word();
                let count = items.len();
                let message = format!("`{op}` compares with one value, list `{name}` has {count}");
                let help = match compare.op.class() {
                    OpClass::String if op != "=" => format!("write `{op} anyof ({name})`"),
                    _ => format!("write `in ({name})`"),
                };
                self.compile_problem(span, message, Some(help));
                expansion.failed = true;
            }
            Value::ListName(name, span) => {
                let span = *span;
                let literal = Literal {
                    text: name.as_str().into(),
                    quoted: false,
                    span,
                };
                let items = match self.named_list(&literal) {
                    Some(items) => items.to_vec(),
                    None => {
                        self.unknown_list(name, span);
                        vec![literal]
                    }
                };
                self.count(items.len(), span, expansion);
                compare.right = Value::List(items, span);
            }
            Value::List(items, span) => {
                expansion.failed |= self.has_unknown_name(items);
                if items.iter().any(|item| self.is_list_name(item)) {
                    let mut expanded = Vec::with_capacity(items.len());
                    for item in items.drain(..) {
                        match self.named_list(&item) {
                            Some(values) => expanded.extend_from_slice(&values),
                            None => expanded.push(item),
                        }
                        if expanded.len() > MAX_CONDITION_NODES {
                            break;
                        }
                    }
                    *items = expanded;
                }
                let (count, span) = (items.len(), *span);
                self.count(count, span, expansion);
            }
        }
    }

    fn is_list_name(&self, literal: &Literal) -> bool {
        let name = literal.text.as_str().filter(|_| !literal.quoted);
        name.is_some_and(|name| self.collector.lists.get(name).is_some())
    }

    /// Reports words without quotes and commas that are not the name of a list. Returns true if there are any.
    fn has_unknown_name(&mut self, items: &[Literal]) -> bool {
        let is_unknown = |literal: &&Literal| {
            let name = literal.text.as_str().filter(|_| !literal.quoted);
            name.is_some_and(|name| {
                name.contains(' ')
                    && self.collector.lists.get(name).is_none()
                    && !self.collector.is_broken(ItemKind::List, name)
            })
        };
        let Some(words) = items.iter().find(is_unknown) else {
            return false;
        };
        let message = format!(
            "expected `,` or `)` between the words of `{}`, which is not the name of a list",
            words.text.to_lossy()
        );
        self.compile_problem(words.span, message, None);
        true
    }

    /// Returns the values of the list that an unquoted literal names.
    fn named_list(&mut self, literal: &Literal) -> Option<Arc<[Literal]>> {
        let name = literal.text.as_str().filter(|_| !literal.quoted)?;
        let at = self.collector.lists.position(name)?;
        self.lists_used[at] = true;
        Some(self.list(at))
    }

    /// Warns of an unknown list. Falco takes the name as a value, so this is no error.
    fn unknown_list(&mut self, name: &str, span: Span) {
        if self.collector.is_broken(ItemKind::List, name) {
            return;
        }
        let near = self.guesses.closest(name, self.collector.lists.names());
        let message = format!("no list `{name}`, so this compares with the text `{name}`");
        let mut warning =
            Diagnostic::new(Code::DoubtfulCondition, self.sources.locate(span), message);
        warning.help = Some(near.map_or_else(
            || format!("write `({name})` if that is meant"),
            |near| format!("did you mean `{near}`?"),
        ));
        self.problem(warning);
    }

    /// Adds to the size of a condition; returns false if it is too large.
    fn count(&mut self, nodes: usize, span: Span, expansion: &mut Expansion) -> bool {
        if expansion.full {
            return false;
        }
        expansion.nodes += nodes;
        if expansion.nodes > MAX_CONDITION_NODES {
            let message =
                format!("more than {MAX_CONDITION_NODES} checks and values with its macros");
            self.compile_problem(span, message, None);
            expansion.full = true;
        } else if self.nodes + expansion.nodes > 10 * MAX_CONDITION_NODES {
            let message = format!(
                "the conditions have more than {} checks and values together",
                10 * MAX_CONDITION_NODES
            );
            self.compile_problem(span, message, None);
            expansion.full = true;
        }
        expansion.failed |= expansion.full;
        !expansion.full
    }

    // Problems.

    fn compile_problem(&mut self, span: Span, message: String, help: Option<String>) {
        let location = self.sources.locate(span);
        let mut problem = Diagnostic::new(Code::CompileCondition, location, message);
        problem.help = help;
        self.problem(problem);
    }

    fn invalid(&mut self, span: Span, message: String, help: Option<String>) {
        let mut problem = Diagnostic::new(Code::Validate, self.sources.locate(span), message);
        problem.help = help;
        self.problem(problem);
    }

    fn problem(&mut self, problem: Diagnostic) {
        self.problems.push(problem.in_item(self.context.clone()));
    }
}

fn depth(expr: &Expr) -> usize {
    1 + match &expr.kind {
        ExprKind::And(children) | ExprKind::Or(children) => {
            children.iter().map(depth).max().unwrap_or(0)
        }
        ExprKind::Not(child) | ExprKind::Expanded { body: child, .. } => depth(child),
        ExprKind::Exists(_) | ExprKind::Compare(_) | ExprKind::Macro(_) => 0,
    }
}
