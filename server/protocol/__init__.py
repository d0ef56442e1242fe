"""What all APIs share: errors, validation of request bodies, common fields, tools, structured outputs."""
