"""The splitter: cuts the input into ticks and gives each lane its share."""
