//! Which match PostgreSQL takes, and how it divides it among the groups.
//!
//! Of the matches that begin first it is the longest or the shortest, whichever the pattern prefers. Of what follows one another, the first part takes what
//! it prefers, as long as the rest can be matched; of alternatives it is the first that matches all. So parts of a pattern are matched by themselves: each
//! has an automaton of its own that knows all ends of its matches, made when it is first needed.

use std::sync::OnceLock;

use regex_automata::hybrid::dfa::{Cache, DFA, OverlappingState};
use regex_automata::nfa::thompson::pikevm::{self, PikeVM};
use regex_automata::nfa::thompson::{self, NFA, WhichCaptures};
use regex_automata::util::syntax;
use regex_automata::{Anchored, Input, MatchKind};
use weir_catalog::{Error, Result};

use super::translate::{Kind, Node};
use super::{Options, invalid};

/// The memory that the automaton of a part may take, as in the `regex` crate.
const MOST_BYTES: usize = 10 << 20;

/// Where a group's text begins and ends.
pub(super) type Span = (usize, usize);

/// A pattern as a tree of parts.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    root: Node,
    options: Options,
    /// By the parts' ids.
    automata: Vec<OnceLock<Automaton>>,
}

/// What finds the ends of a part's matches.
#[derive(Clone, Debug)]
struct Automaton {
    dfa: DFA,
    /// For what the other gives up on: ends of words in a text beyond ASCII.
    slow: PikeVM,
}

/// What the automata of one pattern have learnt.
#[derive(Default)]
pub(super) struct Caches(Vec<Option<Learnt>>);

struct Learnt {
    dfa: Cache,
    slow: Option<pikevm::Cache>,
}

impl Tree {
    /// A tree whose parts have ids below `nodes`.
    pub fn new(root: Node, nodes: usize, options: Options) -> Tree {
        let automata = (0..nodes).map(|_| OnceLock::new()).collect();
        Tree { root, options, automata }
    }

    /// The end of the match that begins at `start`, where one does.
    pub fn end(&self, caches: &mut Caches, text: &str, start: usize) -> Result<usize> {
        let mut search = Search { tree: self, caches, text };
        let end = search.edge(&self.root, (start, text.len()), self.root.prefers_shorter())?;
        end.ok_or_else(lost)
    }

    /// Sets the groups of the match at `span`.
    pub fn divide(&self, caches: &mut Caches, text: &str, span: Span, groups: &mut [Option<Span>]) -> Result<()> {
        Search { tree: self, caches, text }.divide(&self.root, span, groups)
    }

    fn automaton(&self, node: &Node) -> Result<&Automaton> {
        let place = self.automata.get(node.id).ok_or_else(lost)?;
        if let Some(automaton) = place.get() {
            return Ok(automaton);
        }
        let made = Automaton::new(&node.text, self.options).ok_or_else(|| invalid("regular expression is too complex"))?;
        Ok(place.get_or_init(|| made))
    }
}

fn lost() -> Error {
    Error::internal("a part of a regular expression does not match what it should")
}

impl Automaton {
    /// `None` where it takes too much memory.
    fn new(text: &str, options: Options) -> Option<Automaton> {
        let syntax = syntax::Config::new()
            .case_insensitive(options.any_case)
            .dot_matches_new_line(!options.lines_for_dot)
            .multi_line(options.lines_for_ends);
        let config = thompson::Config::new().which_captures(WhichCaptures::Implicit).nfa_size_limit(Some(MOST_BYTES));
        let nfa: NFA = thompson::Compiler::new().syntax(syntax).configure(config).build(text).ok()?;
        let config = DFA::config().match_kind(MatchKind::All).unicode_word_boundary(true).skip_cache_capacity_check(true);
        let dfa = DFA::builder().configure(config).build_from_nfa(nfa.clone()).ok()?;
        let slow = PikeVM::builder().configure(PikeVM::config().match_kind(MatchKind::All)).build_from_nfa(nfa).ok()?;
        Some(Automaton { dfa, slow })
    }
}

/// A search in one text.
struct Search<'a> {
    tree: &'a Tree,
    caches: &'a mut Caches,
    text: &'a str,
}

impl<'a> Search<'a> {
    fn ready(&mut self, node: &Node) -> Result<(&'a Automaton, &mut Learnt)> {
        let automaton = self.tree.automaton(node)?;
        if self.caches.0.len() <= node.id {
            self.caches.0.resize_with(node.id + 1, || None);
        }
        let learnt = self.caches.0[node.id].get_or_insert_with(|| Learnt { dfa: automaton.dfa.create_cache(), slow: None });
        Ok((automaton, learnt))
    }

    /// The last end in `span` of the matches of `node` that begin where it does, or the first.
    fn edge(&mut self, node: &Node, span: Span, first: bool) -> Result<Option<usize>> {
        let text = self.text;
        let (automaton, learnt) = self.ready(node)?;
        let input = Input::new(text).range(span.0..span.1).anchored(Anchored::Yes).earliest(first);
        if let Ok(found) = automaton.dfa.try_search_fwd(&mut learnt.dfa, &input) {
            return Ok(found.map(|found| found.offset()));
        }
        let cache = learnt.slow.get_or_insert_with(|| automaton.slow.create_cache());
        Ok(automaton.slow.find(cache, input).map(|found| found.end()))
    }

    fn matches(&mut self, node: &Node, span: Span) -> Result<bool> {
        Ok(self.edge(node, span, false)? == Some(span.1))
    }

    /// All ends in `span` of the matches of `node` that begin where it does, in the order in which it prefers them.
    fn ends(&mut self, node: &Node, span: Span) -> Result<Vec<usize>> {
        let text = self.text;
        let (automaton, learnt) = self.ready(node)?;
        let input = Input::new(text).range(span.0..span.1).anchored(Anchored::Yes);
        let mut state = OverlappingState::start();
        let mut ends: Vec<usize> = Vec::new();
        let gave_up = loop {
            if automaton.dfa.try_search_overlapping_fwd(&mut learnt.dfa, &input, &mut state).is_err() {
                break true;
            }
            let Some(found) = state.get_match() else { break false };
            if text.is_char_boundary(found.offset()) {
                ends.push(found.offset());
            }
        };
        if gave_up {
            ends.clear();
            let mut limit = Some(span.1);
            while let Some(end) = limit {
                let Some(end) = self.edge(node, (span.0, end), false)? else { break };
                ends.push(end);
                limit = text[span.0..end].char_indices().next_back().map(|(at, _)| span.0 + at);
            }
            ends.reverse();
        }
        if !node.prefers_shorter() {
            ends.reverse();
        }
        Ok(ends)
    }

    /// Sets the groups in `node`, which matches `span`.
    fn divide(&mut self, node: &Node, span: Span, groups: &mut [Option<Span>]) -> Result<()> {
        if !node.has_captures() {
            return Ok(());
        }
        match &node.kind {
            Kind::Leaf => {}
            Kind::Group(inner) => self.divide(inner, span, groups)?,
            Kind::Concat(left, right) => {
                let mut middle = None;
                for end in self.ends(left, span)? {
                    if self.matches(right, (end, span.1))? {
                        middle = Some(end);
                        break;
                    }
                }
                let middle = middle.ok_or_else(lost)?;
                self.divide(left, (span.0, middle), groups)?;
                self.divide(right, (middle, span.1), groups)?;
            }
            Kind::Alternatives(branches) => {
                for branch in branches {
                    if self.matches(branch, span)? {
                        self.divide(branch, span, groups)?;
                        break;
                    }
                }
            }
            Kind::Repeat(inner, most) => {
                if let Some(last) = self.last_of(inner, *most, span)? {
                    self.divide(inner, last, groups)?;
                }
            }
        }
        if let (Some(capture), Some(group)) = (node.capture, node.capture.and_then(|capture| groups.get_mut(capture))) {
            debug_assert!(capture > 0);
            *group = Some(span);
        }
        Ok(())
    }

    /// The last of the parts into which `span` falls, each of which `node` matches and none of which is empty; `None` where it is not repeated at all.
    fn last_of(&mut self, node: &Node, most: Option<u32>, span: Span) -> Result<Option<Span>> {
        let (start, stop) = span;
        if start == stop {
            // Once, if that is possible, unless it is to be as seldom as possible.
            return Ok(if !node.prefers_shorter() && self.matches(node, span)? { Some(span) } else { None });
        }
        let most = most.map_or(usize::MAX, |most| most as usize);
        // Places that were reached, with the ends that are left to be tried from there, the next one last; and what has led nowhere.
        let ends = |search: &mut Self, from: usize| -> Result<Vec<usize>> {
            let mut ends = search.ends(node, (from, stop))?;
            ends.retain(|end| *end > from);
            ends.reverse();
            Ok(ends)
        };
        let mut failed = std::collections::HashSet::new();
        let mut reached = vec![(start, ends(self, start)?)];
        while let Some((from, left)) = reached.last_mut() {
            let from = *from;
            let next = left.pop();
            let depth = reached.len();
            match next {
                Some(end) if end == stop => return Ok(Some((from, stop))),
                Some(end) => {
                    let key = (end, if most == usize::MAX { 0 } else { depth });
                    if depth < most && !failed.contains(&key) {
                        let ends = ends(self, end)?;
                        reached.push((end, ends));
                    }
                }
                None => {
                    reached.pop();
                    failed.insert((from, if most == usize::MAX { 0 } else { depth - 1 }));
                }
            }
        }
        Err(lost())
    }
}
