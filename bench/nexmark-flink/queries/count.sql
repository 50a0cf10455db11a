-- updates
-- Parse only: rows are told apart, and no column is read.
CREATE TABLE answer (bids BIGINT) WITH (${sink});
INSERT INTO answer SELECT count(*) FROM bid;
