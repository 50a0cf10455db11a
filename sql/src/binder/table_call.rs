//! Calls of functions that give a table: `state('job', 'uid')` in FROM. What they give has to be asked for before a statement is bound: so they are
//! found first, and the binder gets a table for each.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{self, Visit, Visitor};
use weir_catalog::{Error, Result, SqlState};

use super::scope::name_of;

/// The functions that there are, each with what it is of.
const FUNCTIONS: [(&str, &str); 2] = [("state", "job"), ("savepoint_state", "savepoint")];

/// A call of a function that reads the state of an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableCall {
    /// `state` or `savepoint_state`.
    pub function: String,
    /// The name of a job, or the name or folder of a savepoint.
    pub of: String,
    pub uid: String,
    /// The state's name; `None` for the operator's first.
    pub state: Option<String>,
    /// The checkpoint as of which it is read; `None` for a new one.
    pub checkpoint: Option<u64>,
}

impl TableCall {
    /// The call of `name` with `arguments`; `None` where that is no function of this kind. Errors with `22023` for arguments that it does not take.
    pub fn new(name: &ast::ObjectName, arguments: &ast::TableFunctionArgs) -> Result<Option<TableCall>> {
        let [part] = name.0.as_slice() else { return Ok(None) };
        let Some(function) = part.as_ident().map(name_of) else { return Ok(None) };
        let Some((_, what)) = FUNCTIONS.iter().find(|(known, _)| *known == function) else { return Ok(None) };
        let wrong = || {
            Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("{function}{} is not a call of this function", listed(arguments)))
                .with_hint(match function.as_str() {
                    "state" => "It is called as state('job', 'uid'[, 'state name']) [AS OF CHECKPOINT number], with constants.".to_string(),
                    _ => format!("It is called as {function}('{what}', 'uid'[, 'state name']), with constants."),
                })
        };
        if arguments.settings.is_some() {
            return Err(wrong());
        }
        let (mut texts, mut checkpoint) = (Vec::new(), None);
        for argument in &arguments.args {
            let ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(ast::Expr::Value(value))) = argument else { return Err(wrong()) };
            match &value.value {
                ast::Value::SingleQuotedString(text) if checkpoint.is_none() => texts.push(text.clone()),
                ast::Value::Number(number, _) if checkpoint.is_none() && function == "state" => {
                    checkpoint = Some(number.parse().map_err(|_| wrong())?);
                }
                _ => return Err(wrong()),
            }
        }
        let mut texts = texts.into_iter();
        let (Some(of), Some(uid), state, None) = (texts.next(), texts.next(), texts.next(), texts.next()) else { return Err(wrong()) };
        Ok(Some(TableCall { function, of, uid, state, checkpoint }))
    }
}

fn listed(arguments: &ast::TableFunctionArgs) -> String {
    let arguments: Vec<String> = arguments.args.iter().map(ToString::to_string).collect();
    format!("({})", arguments.join(", "))
}

/// The calls in `query`, each once. What is wrong with one, the binder says.
pub fn table_calls(query: &ast::Query) -> Vec<TableCall> {
    struct Calls(Vec<TableCall>);
    impl Visitor for Calls {
        type Break = ();

        fn pre_visit_table_factor(&mut self, factor: &ast::TableFactor) -> ControlFlow<()> {
            if let ast::TableFactor::Table { name, args: Some(arguments), .. } = factor
                && let Ok(Some(call)) = TableCall::new(name, arguments)
                && !self.0.contains(&call)
            {
                self.0.push(call);
            }
            ControlFlow::Continue(())
        }
    }
    let mut calls = Calls(Vec::new());
    let _ = query.visit(&mut calls);
    calls.0
}
