-- updates
-- Parse only: rows are told apart, and no column is needed (weir still reads the first).
CREATE TABLE answer (bids BIGINT) WITH (${sink});
INSERT INTO answer SELECT count(*) FROM bid;
