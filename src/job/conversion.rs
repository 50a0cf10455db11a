//! How stored keys and rows become those of an operator whose columns have other types.

use std::collections::BTreeMap;

use arrow::datatypes::DataType;
use weir_catalog::{DerivedColumn, Result};
use weir_sql::graph::Node;
use weir_sql::widens;

use crate::checkpoint::OperatorCheckpoint;
use crate::operators::materialize::RowLayout;
use crate::state::convert::{ColumnOrigin, Conversion, KeyConversion, StateConversion, ValueConversion};
use crate::state::descriptor::{StateColumn, StateDescriptor};

/// What is said where nothing else has changed.
pub const WIDER: &str = "columns have a wider type";

/// The types of columns.
pub fn types(columns: &[StateColumn]) -> Result<Vec<DataType>> {
    columns.iter().map(StateColumn::data_type).collect()
}

/// How the keys of the state `from` become those of `to`, the first `own` columns of which are the operator's key; `Ok(None)`: as they are. `Err`: why they can't.
pub fn key_conversion(
    from: &StateDescriptor,
    to: &StateDescriptor,
    own: usize,
    rows: bool,
) -> Result<std::result::Result<Option<KeyConversion>, String>> {
    let (was, is) = (types(&from.key)?, types(&to.key)?);
    if was == is {
        return Ok(Ok(None));
    }
    if was.len() != is.len()
        || from.greatest_first != to.greatest_first
        || !was.iter().zip(&is).all(|(was, is)| was == is || widens(was, is))
    {
        let list = |columns: &[StateColumn]| {
            columns.iter().map(|column| format!("{} {}", column.name, column.type_name)).collect::<Vec<_>>().join(", ")
        };
        return Ok(Err(format!("its {} were of ({}), and are of ({}): they need not fit", to.name, list(&from.key), list(&to.key))));
    }
    Ok(Ok(Some(KeyConversion { from: was, to: is, own, greatest_first: to.greatest_first, rows, columns: None })))
}

/// Where columns that are `is` come from of ones that were `was`, all of which are still there, and the names of those that are new; `None` where there is no new one,
/// or one is gone.
pub fn added_columns(was: &[DerivedColumn], is: &[DerivedColumn]) -> Option<(Vec<ColumnOrigin>, Vec<String>)> {
    let (mut origins, mut new, mut taken) = (Vec::new(), Vec::new(), vec![false; was.len()]);
    for column in is {
        match (0..was.len()).find(|at| !taken[*at] && was[*at].text == column.text) {
            Some(at) => {
                taken[at] = true;
                origins.push(ColumnOrigin::Column(at));
            }
            None => {
                new.push(column.name.clone());
                origins.push(ColumnOrigin::Null);
            }
        }
    }
    (taken.iter().all(|taken| *taken) && !new.is_empty()).then_some((origins, new))
}

/// As [`rows_conversion`], of rows without a key that have more columns than before, or in other places: `columns` says where each comes from. `None` where their
/// types do not fit.
pub fn longer_rows_conversion(node: &Node, checkpoint: &OperatorCheckpoint, columns: Vec<ColumnOrigin>) -> Result<Option<Conversion>> {
    let to = RowLayout::new(node.schema.clone(), None)?.descriptor();
    let Some(from) = checkpoint.states.first() else { return Ok(None) };
    let (was, is) = (types(&from.key)?, types(&to.key)?);
    let fits = |(origin, is): (&ColumnOrigin, &DataType)| match origin {
        ColumnOrigin::Column(place) => was.get(*place).is_some_and(|was| was == is || widens(was, is)),
        ColumnOrigin::Null | ColumnOrigin::Zero => true,
    };
    if columns.len() != is.len() || !columns.iter().zip(&is).all(fits) {
        return Ok(None);
    }
    let own = is.len();
    let keys = Some(KeyConversion { from: was, to: is, own, greatest_first: false, rows: true, columns: Some(columns) });
    Ok(Some(Conversion { states: vec![StateConversion { from_tag: from.tag, to_tag: to.tag, keys, values: None }] }))
}

/// How the rows that `node` keeps are brought over, without states where they stay as they are; `None` where their types do not fit.
pub fn rows_conversion(node: &Node, checkpoint: &OperatorCheckpoint) -> Result<Option<Conversion>> {
    let to = RowLayout::new(node.schema.clone(), node.upsert_key.clone())?.descriptor();
    let Some(from) = checkpoint.states.first() else { return Ok(None) };
    let Ok(keys) = key_conversion(from, &to, to.key.len(), node.upsert_key.is_none())? else { return Ok(None) };
    let was: BTreeMap<u8, Vec<DataType>> =
        from.schemas.iter().map(|(number, columns)| Ok((*number, types(columns)?))).collect::<Result<_>>()?;
    let is = to.schemas.values().next_back().map(|columns| types(columns)).transpose()?.unwrap_or_default();
    let fits = |was: &Vec<DataType>| was.len() == is.len() && was.iter().zip(&is).all(|(was, is)| was == is || widens(was, is));
    if !was.values().all(fits) {
        return Ok(None);
    }
    let values = was.values().any(|was| *was != is).then(|| {
        let columns = (0..is.len()).map(ColumnOrigin::Column).collect();
        ValueConversion { from: was.clone(), to: is.clone(), columns }
    });
    let state = StateConversion { from_tag: from.tag, to_tag: to.tag, keys, values };
    let is_needed = state.keys.is_some() || state.values.is_some();
    Ok(Some(Conversion { states: if is_needed { vec![state] } else { Vec::new() } }))
}
