//! What becomes of each operator's state where a job's query is planned again: by uid, the operators that the state was kept for are compared with those
//! of the present plan.
//!
//! The comparison looks at descriptors alone, and so tells what the *state* of an operator can be used for. Whether rows that were computed before are
//! still the answer of a changed query is not a question of one operator's state.

use std::collections::BTreeSet;
use std::fmt;

use weir_catalog::OperatorDescriptor;

/// What becomes of an operator's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is used as it is.
    Reused,
    /// It is used, and what differs is converted when it is read.
    Converted,
    /// It can't be used, or there is none: the operator begins anew.
    Rebuilt,
    /// No operator has its uid any more.
    Dropped,
}

impl Verdict {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Verdict::Reused => "reused",
            Verdict::Converted => "converted",
            Verdict::Rebuilt => "rebuilt",
            Verdict::Dropped => "dropped",
        }
    }
}

/// The verdict on one operator, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperatorVerdict {
    pub uid: String,
    pub verdict: Verdict,
    /// Empty where the state is reused as it is.
    pub reason: String,
}

impl fmt::Display for OperatorVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.uid, self.verdict.as_str())?;
        if self.reason.is_empty() { Ok(()) } else { write!(f, " ({})", self.reason) }
    }
}

/// Compares, uid by uid, the operators that state was `kept` for with the `planned` ones: those in their order, then what no plan has any more.
pub fn compare(kept: &[OperatorDescriptor], planned: &[OperatorDescriptor]) -> Vec<OperatorVerdict> {
    let mut verdicts: Vec<OperatorVerdict> = planned
        .iter()
        .map(|plan| {
            let former = kept.iter().find(|former| former.uid == plan.uid);
            let (verdict, reason) = match former {
                None => (Verdict::Rebuilt, "there is no state with this uid".to_string()),
                Some(former) => compare_operator(former, plan),
            };
            OperatorVerdict { uid: plan.uid.clone(), verdict, reason }
        })
        .collect();
    let left = kept.iter().filter(|former| !planned.iter().any(|plan| plan.uid == former.uid));
    verdicts.extend(left.map(|former| OperatorVerdict {
        uid: former.uid.clone(),
        verdict: Verdict::Dropped,
        reason: "no operator has this uid".to_string(),
    }));
    verdicts
}

/// SELECT DISTINCT is an aggregate without calls: both have a state by group.
fn family(operator: &str) -> &str {
    if operator == "distinct" { "aggregate" } else { operator }
}

fn compare_operator(kept: &OperatorDescriptor, planned: &OperatorDescriptor) -> (Verdict, String) {
    if family(&kept.operator) != family(&planned.operator) {
        return (Verdict::Rebuilt, format!("the operator was {}, and is {}", kept.operator, planned.operator));
    }
    // The key's encoding is the order and the types of its columns, whatever they are called.
    let types = |columns: &[(String, String)]| columns.iter().map(|(_, ty)| ty.clone()).collect::<Vec<_>>();
    if types(&kept.key) != types(&planned.key) {
        return (Verdict::Rebuilt, format!("the key was ({}), and is ({})", list(&kept.key), list(&planned.key)));
    }
    let mut changes = Vec::new();
    if kept.key != planned.key {
        // What an aggregate groups by is said by its key's names. A view's columns only are called something else.
        let reason = format!("the key was ({}), and is ({})", list(&kept.key), list(&planned.key));
        let same_names = names(&kept.key) == names(&planned.key);
        if family(&kept.operator) == "aggregate" || same_names {
            return (Verdict::Rebuilt, reason);
        }
        changes.push(reason);
    }
    for (name, ty) in &planned.value {
        match kept.value.iter().find(|(former, _)| former == name) {
            None => changes.push(format!("{name} is new")),
            Some((_, former)) if former == ty => {}
            Some((_, former)) if widens(former, ty) => changes.push(format!("{name} was {former}, and is {ty}")),
            Some((_, former)) => {
                return (Verdict::Rebuilt, format!("{name} was {former}, and is {ty}: its values need not fit"));
            }
        }
    }
    let left = kept.value.iter().filter(|(former, _)| !planned.value.iter().any(|(name, _)| name == former));
    changes.extend(left.map(|(name, _)| format!("{name} is gone")));
    if changes.is_empty() && kept.value != planned.value {
        changes.push("the columns stand in another order".to_string());
    }
    if changes.is_empty() { (Verdict::Reused, String::new()) } else { (Verdict::Converted, changes.join(", ")) }
}

fn names(columns: &[(String, String)]) -> BTreeSet<&str> {
    columns.iter().map(|(name, _)| name.as_str()).collect()
}

fn list(columns: &[(String, String)]) -> String {
    columns.iter().map(|(name, ty)| format!("{name} {ty}")).collect::<Vec<_>>().join(", ")
}

/// Whether every value of the type `from` is one of the type `to`, with nothing lost. Types are given as [`weir_catalog::SqlType`] prints them.
fn widens(from: &str, to: &str) -> bool {
    match (from, to) {
        ("integer", "bigint" | "double precision") => true,
        (_, "integer" | "bigint") => false,
        _ => match (exact_digits(from), exact_digits(to)) {
            (Some((whole, fraction)), Some((wider, finer))) => wider >= whole && finer >= fraction,
            _ => false,
        },
    }
}

/// How many digits an exact number has before the point, and behind it.
fn exact_digits(ty: &str) -> Option<(i16, i16)> {
    match ty {
        "integer" => Some((10, 0)),
        "bigint" => Some((19, 0)),
        _ => {
            let (precision, scale) = ty.strip_prefix("numeric(")?.strip_suffix(')')?.split_once(',')?;
            let (precision, scale): (i16, i16) = (precision.parse().ok()?, scale.parse().ok()?);
            Some((precision - scale, scale))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operator(uid: &str, operator: &str, key: &[(&str, &str)], value: &[(&str, &str)]) -> OperatorDescriptor {
        let own = |columns: &[(&str, &str)]| columns.iter().map(|(name, ty)| (name.to_string(), ty.to_string())).collect();
        OperatorDescriptor { uid: uid.into(), operator: operator.into(), key: own(key), value: own(value) }
    }

    fn by_auction(value: &[(&str, &str)]) -> OperatorDescriptor {
        operator("aggregate(auction)", if value.is_empty() { "distinct" } else { "aggregate" }, &[("auction", "bigint")], value)
    }

    /// The verdict on one operator that both plans have.
    fn verdict(kept: OperatorDescriptor, planned: OperatorDescriptor) -> (Verdict, String) {
        let mut verdicts = compare(&[kept], &[planned]);
        assert_eq!(verdicts.len(), 1, "{verdicts:?}");
        let verdict = verdicts.remove(0);
        (verdict.verdict, verdict.reason)
    }

    const COUNT: (&str, &str) = ("count(*)", "bigint");
    const BEST: (&str, &str) = ("max(price)", "integer");

    #[test]
    fn what_is_the_same_is_reused_in_whatever_order_the_plan_has_it() {
        let kept = [by_auction(&[COUNT, BEST]), operator("v/rows", "rows", &[("auction", "bigint")], &[("n", "bigint")])];
        let planned = [kept[1].clone(), kept[0].clone()];
        let verdicts = compare(&kept, &planned);
        assert!(verdicts.iter().all(|verdict| verdict.verdict == Verdict::Reused && verdict.reason.is_empty()), "{verdicts:?}");
        assert_eq!(verdicts.iter().map(|verdict| verdict.uid.as_str()).collect::<Vec<_>>(), ["v/rows", "aggregate(auction)"]);
    }

    #[test]
    fn operators_are_matched_by_uid_alone() {
        let kept = [by_auction(&[COUNT]), operator("old", "rows", &[], &[])];
        let planned = [operator("new", "rows", &[], &[]), by_auction(&[COUNT])];
        let found: Vec<(String, Verdict)> = compare(&kept, &planned).into_iter().map(|verdict| (verdict.uid, verdict.verdict)).collect();
        let expected = [("new", Verdict::Rebuilt), ("aggregate(auction)", Verdict::Reused), ("old", Verdict::Dropped)];
        assert_eq!(found, expected.map(|(uid, verdict)| (uid.to_string(), verdict)));
    }

    #[test]
    fn calls_that_come_and_go_are_converted() {
        for (kept, planned, reason) in [
            (vec![COUNT], vec![COUNT, BEST], "max(price) is new"),
            (vec![COUNT, BEST], vec![BEST], "count(*) is gone"),
            (vec![], vec![COUNT], "count(*) is new"),
            (vec![COUNT, BEST], vec![BEST, COUNT], "the columns stand in another order"),
            (vec![COUNT], vec![BEST], "max(price) is new, count(*) is gone"),
            (vec![BEST], vec![("max(price)", "numeric(20,2)")], "max(price) was integer, and is numeric(20,2)"),
        ] {
            assert_eq!(verdict(by_auction(&kept), by_auction(&planned)), (Verdict::Converted, reason.to_string()));
        }
    }

    #[test]
    fn another_key_or_operator_and_a_narrower_type_are_rebuilt() {
        let key = |key: &[(&str, &str)]| operator("a", "aggregate", key, &[COUNT]);
        let narrower = [("max(price)", "bigint")];
        for (kept, planned, word) in [
            (key(&[("x", "bigint")]), key(&[("x", "integer")]), "the key was (x bigint)"),
            (key(&[("x", "bigint")]), key(&[("y", "bigint")]), "and is (y bigint)"),
            (key(&[("x", "bigint"), ("y", "bigint")]), key(&[("y", "bigint"), ("x", "bigint")]), "the key was"),
            (key(&[("x", "bigint")]), operator("a", "rows", &[("x", "bigint")], &[COUNT]), "the operator was aggregate, and is rows"),
            (by_auction(&narrower), by_auction(&[BEST]), "max(price) was bigint, and is integer"),
        ] {
            let (found, reason) = verdict(kept, planned);
            assert_eq!(found, Verdict::Rebuilt, "{reason}");
            assert!(reason.contains(word), "{reason}");
        }
    }

    #[test]
    fn the_columns_of_a_view_may_be_called_something_else() {
        let rows = |key: &[(&str, &str)]| operator("v/rows", "rows", key, &[]);
        assert_eq!(verdict(rows(&[("a", "text"), ("b", "text")]), rows(&[("a", "text"), ("c", "text")])).0, Verdict::Converted);
        // Two columns that changed places are not.
        assert_eq!(verdict(rows(&[("a", "text"), ("b", "text")]), rows(&[("b", "text"), ("a", "text")])).0, Verdict::Rebuilt);
    }

    #[test]
    fn a_type_is_wider_where_it_holds_every_value() {
        for (from, to) in [
            ("integer", "bigint"),
            ("integer", "double precision"),
            ("integer", "numeric(10,0)"),
            ("bigint", "numeric(21,2)"),
            ("numeric(10,2)", "numeric(12,4)"),
        ] {
            assert!(widens(from, to), "{from} to {to}");
        }
        for (from, to) in [
            ("bigint", "integer"),
            ("bigint", "double precision"),
            ("bigint", "numeric(20,2)"),
            ("numeric(10,2)", "numeric(10,4)"),
            ("numeric(5,0)", "integer"),
            ("numeric(5,0)", "bigint"),
            ("text", "bigint"),
            ("boolean", "text"),
        ] {
            assert!(!widens(from, to), "{from} to {to}");
        }
    }
}
