//! The compiled form of all conditions, with one root per rule and kind of event.
//!
//! Every condition is specialised for every kind: atoms that the kind alone decides (by its name, its
//! category, parameters it does not have) are folded away, and rules that cannot match a kind are not in its
//! table. Equal sub-expressions of all rules and kinds share one node. Within a node, the children with the
//! best ratio of decisiveness to cost come first.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use event::field::{Field, ProcessFact, Source as FieldSource};
use event::{EventKind, Process, Stage};
use serde::{Deserialize, Serialize};

use super::atom::{AtomId, AtomKey, Atoms, Check, operand_cost};
use super::fact::{Facts, blank_process};
use super::index::Index;
use super::opening::Openable;
use super::operand::{OperandId, Operands};
use super::text_set::ByteHasher;
use super::tree::Tree;

/// Index of a node in [`Program::node`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
pub(crate) struct NodeId(u32);

impl NodeId {
    /// Returns the index in tables that are parallel to the table of nodes.
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// One node of a compiled condition.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) enum Node {
    /// An atom or its negation.
    Literal { atom: AtomId, negated: bool },
    /// A conjunction; `shared` if several parents refer to it.
    All { children: Children, shared: bool },
    /// A disjunction; `shared` if several parents refer to it.
    Any { children: Children, shared: bool },
}

/// A range of the table of children.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct Children {
    start: u32,
    end: u32,
}

/// A rule that can match a kind of event.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct Entry {
    /// Index of the rule.
    pub(crate) rule: usize,
    /// Root of the condition; `None` if the kind alone decides that the rule matches.
    pub(crate) root: Option<NodeId>,
    /// Earliest stage at which one of its atoms is known; before it nothing can be decided.
    pub(crate) stage: Stage,
    /// Stage from which all fields of the rule's output are known.
    pub(crate) output_stage: Stage,
    /// Process facts that the rule needs.
    pub(crate) asks: ProcessNeeds,
}

/// Process facts that a rule needs and that may be gone when they are read.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(crate) struct ProcessNeeds {
    /// The executable file.
    pub(crate) executable_file: bool,
    /// The environment of the process or an ancestor.
    pub(crate) environment: bool,
    /// Open descriptors other than the event's own.
    pub(crate) descriptors: bool,
}

impl ProcessNeeds {
    fn add(&mut self, field: &Field) {
        match field.depends_on() {
            FieldSource::Process(ProcessFact::ExecutableFile) => self.executable_file = true,
            FieldSource::Process(ProcessFact::Environment) => self.environment = true,
            FieldSource::Process(ProcessFact::Descriptors) => self.descriptors = true,
            _ => self.environment |= field.spec.name == "proc.aenv",
        }
    }
}

/// The rules that can match one kind of event.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct KindProgram {
    /// Rules in load order.
    pub(crate) entries: Box<[Entry]>,
    /// Number of distinct operands of all entries.
    pub(crate) operands: usize,
    /// Stage by operand from which it is known. Empty if there are no rules.
    pub(crate) stages: Box<[Stage]>,
    /// Index that excludes rules by one lookup.
    pub(crate) index: Option<Index>,
    /// Analysis for openings of files that no rule can match.
    pub(crate) openable: Option<Openable>,
}

/// All compiled conditions.
#[derive(Debug, Serialize)]
pub(crate) struct Program {
    pub(crate) operands: Operands,
    pub(crate) atoms: Atoms,
    nodes: Vec<Node>,
    children: Vec<NodeId>,
    kinds: Vec<KindProgram>,
}

/// Serialized form of a [`Program`].
#[derive(Deserialize)]
pub(crate) struct Written {
    operands: Operands,
    atoms: Vec<AtomKey>,
    nodes: Vec<Node>,
    children: Vec<NodeId>,
    kinds: Vec<KindProgram>,
}

impl Written {
    /// Rebuilds the program.
    ///
    /// # Errors
    /// Returns the error in the constants, as the end of a sentence.
    pub(crate) fn read(self) -> Result<Program, String> {
        Ok(Program {
            atoms: Atoms::of(self.atoms, &self.operands)?,
            operands: self.operands,
            nodes: self.nodes,
            children: self.children,
            kinds: self.kinds,
        })
    }
}

/// Compiler input: a checked rule.
pub(crate) struct Source<'a> {
    /// Condition of the rule.
    pub(crate) tree: &'a Tree,
    /// Operands of the output.
    pub(crate) outputs: &'a [OperandId],
}

impl Program {
    /// Compiles rules for every kind of event.
    pub(crate) fn new(operands: Operands, atoms: Atoms, sources: &[Source<'_>]) -> Self {
        let mut builder = Builder {
            operands: &operands,
            atoms: &atoms,
            nodes: Vec::new(),
            children: Vec::new(),
            by_shape: HashMap::default(),
        };
        let process = blank_process();
        let kinds = EventKind::all()
            .map(|kind| builder.kind(kind, sources, &process))
            .collect();
        let Builder {
            nodes, children, ..
        } = builder;
        Self {
            operands,
            atoms,
            nodes: nodes.into_iter().map(|built| built.node).collect(),
            children,
            kinds,
        }
    }

    /// Returns the rules that can match a kind.
    pub(crate) fn kind(&self, kind: EventKind) -> &KindProgram {
        &self.kinds[kind.index()]
    }

    /// Returns the node with this id.
    pub(crate) fn node(&self, id: NodeId) -> Node {
        self.nodes[id.index()]
    }

    /// Returns the number of nodes.
    pub(crate) fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the nodes in a range.
    pub(crate) fn children(&self, children: Children) -> &[NodeId] {
        &self.children[children.start as usize..children.end as usize]
    }

    /// Calls `visit` for each atom below a node.
    pub(crate) fn each_atom(&self, id: NodeId, visit: &mut dyn FnMut(AtomId)) {
        match self.node(id) {
            Node::Literal { atom, .. } => visit(atom),
            Node::All { children, .. } | Node::Any { children, .. } => {
                self.children(children)
                    .iter()
                    .for_each(|child| self.each_atom(*child, visit));
            }
        }
    }

    /// Returns the stage from which an atom can be decided for a kind.
    pub(crate) fn atom_stage(&self, id: AtomId, kind: EventKind) -> Stage {
        let atom = self.atoms.get(id);
        let left = self.operands.stage(atom.key.operand, kind);
        match &atom.check {
            Check::Operand(_, right) => left.max(self.operands.stage(*right, kind)),
            Check::Test(_) => left,
        }
    }
}

/// A condition folded for one kind.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Folded {
    Decided(bool),
    Node(NodeId),
}

struct Built {
    node: Node,
    /// Estimated cost in nanoseconds.
    cost: f32,
    /// Estimated probability that the condition holds.
    likelihood: f32,
    parents: u32,
}

#[derive(PartialEq, Eq, Hash)]
enum Shape {
    Literal(AtomId, bool),
    Inner(bool, Box<[NodeId]>),
}

struct Builder<'a> {
    operands: &'a Operands,
    atoms: &'a Atoms,
    nodes: Vec<Built>,
    children: Vec<NodeId>,
    by_shape: HashMap<Shape, NodeId, BuildHasherDefault<ByteHasher>>,
}

impl Builder<'_> {
    fn kind(&mut self, kind: EventKind, sources: &[Source<'_>], process: &Process) -> KindProgram {
        let mut facts = Facts::new(kind, self.operands, self.atoms, process);
        let mut entries = Vec::new();
        for (rule, source) in sources.iter().enumerate() {
            let root = match self.fold(source.tree, &mut facts) {
                Folded::Decided(false) => continue,
                Folded::Decided(true) => None,
                Folded::Node(id) => Some(id),
            };
            let stages = source
                .outputs
                .iter()
                .map(|id| self.operands.stage(*id, kind));
            let output_stage = stages.max().unwrap_or(Stage::Registers);
            let stage = root.map_or(Stage::Registers, |root| self.first_stage(root, kind));
            entries.push(Entry {
                rule,
                root,
                stage,
                output_stage,
                asks: self.asks(root, source),
            });
        }
        if entries.is_empty() {
            return KindProgram::default();
        }
        let atoms = self.atoms_of(&entries);
        let operands = self.count_operands(&atoms);
        let openable = Openable::new(kind, &atoms, self.atoms, self.operands);
        let stages = self
            .operands
            .ids()
            .map(|id| self.operands.stage(id, kind))
            .collect();
        let index = self.index(&entries);
        KindProgram {
            entries: entries.into(),
            operands,
            stages,
            index,
            openable,
        }
    }

    /// Returns the process facts that a rule needs in its condition and its output.
    fn asks(&self, root: Option<NodeId>, source: &Source<'_>) -> ProcessNeeds {
        let mut asks = ProcessNeeds::default();
        let mut look = |id: OperandId| {
            self.operands.each_field(id, &mut |field| asks.add(field));
        };
        source.outputs.iter().for_each(|id| look(*id));
        let mut below: Vec<NodeId> = root.into_iter().collect();
        while let Some(id) = below.pop() {
            match self.nodes[id.index()].node {
                Node::Literal { atom, .. } => {
                    let atom = self.atoms.get(atom);
                    look(atom.key.operand);
                    if let Check::Operand(_, right) = &atom.check {
                        look(*right);
                    }
                }
                Node::All { children, .. } | Node::Any { children, .. } => {
                    below.extend(&self.children[children.start as usize..children.end as usize]);
                }
            }
        }
        asks
    }

    /// Returns the stage from which the first atom below a node is known. An atom that compares two operands
    /// may be decided by either.
    fn first_stage(&self, id: NodeId, kind: EventKind) -> Stage {
        match self.nodes[id.index()].node {
            Node::Literal { atom, .. } => {
                let atom = self.atoms.get(atom);
                let left = self.operands.stage(atom.key.operand, kind);
                match &atom.check {
                    Check::Operand(_, right) => left.min(self.operands.stage(*right, kind)),
                    Check::Test(_) => left,
                }
            }
            Node::All { children, .. } | Node::Any { children, .. } => {
                let range = children.start as usize..children.end as usize;
                let children = self.children[range].iter();
                children
                    .map(|child| self.first_stage(*child, kind))
                    .min()
                    .unwrap_or(Stage::Registers)
            }
        }
    }

    fn index(&self, entries: &[Entry]) -> Option<Index> {
        let node = |id: NodeId| self.nodes[id.index()].node;
        let children = |children: Children| -> &[NodeId] {
            &self.children[children.start as usize..children.end as usize]
        };
        Index::new(entries, self.atoms, self.operands, &children, &node)
    }

    fn fold(&mut self, tree: &Tree, facts: &mut Facts<'_>) -> Folded {
        match tree {
            Tree::Const(value) => Folded::Decided(*value),
            Tree::Literal { atom, negated } => match facts.decide(*atom) {
                Some(value) => Folded::Decided(value != *negated),
                None => Folded::Node(self.literal(*atom, *negated)),
            },
            Tree::All(children) => self.join(children, true, facts),
            Tree::Any(children) => self.join(children, false, facts),
        }
    }

    /// Folds a conjunction (`neutral` is true) or disjunction. Literals are folded first: the kind decides
    /// most of them, and then the other children need no work.
    fn join(&mut self, children: &[Tree], neutral: bool, facts: &mut Facts<'_>) -> Folded {
        let is_literal = |tree: &&Tree| matches!(tree, Tree::Literal { .. });
        for child in children.iter().filter(is_literal) {
            if let Tree::Literal { atom, negated } = child
                && facts
                    .decide(*atom)
                    .is_some_and(|value| (value != *negated) != neutral)
            {
                return Folded::Decided(!neutral);
            }
        }
        let mut nodes = Vec::with_capacity(children.len());
        for child in children {
            match self.fold(child, facts) {
                Folded::Decided(value) if value == neutral => {}
                Folded::Decided(value) => return Folded::Decided(value),
                Folded::Node(id) => self.add(&mut nodes, id, neutral),
            }
        }
        match &*nodes {
            [] => Folded::Decided(neutral),
            [one] => Folded::Node(*one),
            _ => Folded::Node(self.inner(nodes, neutral)),
        }
    }

    /// Adds a child, or the children of a child that is of the same type as its parent.
    fn add(&self, nodes: &mut Vec<NodeId>, id: NodeId, all: bool) {
        let inner = match self.nodes[id.index()].node {
            Node::All { children, .. } if all => children,
            Node::Any { children, .. } if !all => children,
            _ => {
                if !nodes.contains(&id) {
                    nodes.push(id);
                }
                return;
            }
        };
        for child in &self.children[inner.start as usize..inner.end as usize] {
            if !nodes.contains(child) {
                nodes.push(*child);
            }
        }
    }

    fn literal(&mut self, atom: AtomId, negated: bool) -> NodeId {
        let item = self.atoms.get(atom);
        let right = match &item.check {
            Check::Operand(_, right) => operand_cost(self.operands.cost(*right)),
            Check::Test(_) => 0.0,
        };
        let cost = item.cost + operand_cost(self.operands.cost(item.key.operand)) + right;
        let likelihood = if negated {
            1.0 - item.likelihood
        } else {
            item.likelihood
        };
        let node = Node::Literal { atom, negated };
        self.intern(Shape::Literal(atom, negated), |_| Built {
            node,
            cost,
            likelihood,
            parents: 0,
        })
    }

    fn inner(&mut self, mut nodes: Vec<NodeId>, all: bool) -> NodeId {
        // A child's price is its cost divided by the probability that it decides its parent: the order that
        // minimizes the expected cost.
        let price = |id: &NodeId| {
            let built = &self.nodes[id.index()];
            let decides = if all {
                1.0 - built.likelihood
            } else {
                built.likelihood
            };
            built.cost / decides.max(0.001)
        };
        nodes.sort_by(|a, b| price(a).total_cmp(&price(b)));
        let (mut cost, mut reached) = (0.0, 1.0);
        for id in &nodes {
            let built = &self.nodes[id.index()];
            cost += reached * built.cost;
            reached *= if all {
                built.likelihood
            } else {
                1.0 - built.likelihood
            };
        }
        let likelihood = if all { reached } else { 1.0 - reached };
        let shape = Shape::Inner(all, nodes.clone().into());
        self.intern(shape, |builder| {
            for id in &nodes {
                let child = &mut builder.nodes[id.index()];
                child.parents += 1;
                if let Node::All { shared, .. } | Node::Any { shared, .. } = &mut child.node {
                    *shared = child.parents > 1;
                }
            }
            let position = |len: usize| u32::try_from(len).expect("fewer children than bytes");
            let start = position(builder.children.len());
            builder.children.extend(&nodes);
            let children = Children {
                start,
                end: position(builder.children.len()),
            };
            let shared = false;
            let node = if all {
                Node::All { children, shared }
            } else {
                Node::Any { children, shared }
            };
            Built {
                node,
                cost,
                likelihood,
                parents: 0,
            }
        })
    }

    fn intern(&mut self, shape: Shape, build: impl FnOnce(&mut Self) -> Built) -> NodeId {
        if let Some(id) = self.by_shape.get(&shape) {
            return *id;
        }
        let built = build(self);
        let id = NodeId(u32::try_from(self.nodes.len()).expect("fewer nodes than bytes"));
        self.nodes.push(built);
        self.by_shape.insert(shape, id);
        id
    }

    /// Returns the atoms of all conditions in reverse order, possibly with duplicates.
    fn atoms_of(&self, entries: &[Entry]) -> Vec<AtomId> {
        let mut pending: Vec<NodeId> = entries.iter().filter_map(|entry| entry.root).collect();
        let mut visited = vec![false; self.nodes.len()];
        let mut atoms = Vec::new();
        while let Some(id) = pending.pop() {
            if std::mem::replace(&mut visited[id.index()], true) {
                continue;
            }
            match self.nodes[id.index()].node {
                Node::Literal { atom, .. } => atoms.push(atom),
                Node::All { children, .. } | Node::Any { children, .. } => {
                    let range = children.start as usize..children.end as usize;
                    pending.extend(&self.children[range]);
                }
            }
        }
        atoms
    }

    fn count_operands(&self, atoms: &[AtomId]) -> usize {
        let mut seen = vec![false; self.operands.len()];
        for atom in atoms {
            let atom = self.atoms.get(*atom);
            seen[atom.key.operand.index()] = true;
            if let Check::Operand(_, right) = &atom.check {
                seen[right.index()] = true;
            }
        }
        seen.into_iter().filter(|seen| *seen).count()
    }
}
