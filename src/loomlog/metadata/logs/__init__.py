"""Operations on logs: create, switch, trim, delete, retention."""
