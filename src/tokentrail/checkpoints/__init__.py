"""(room description to come)"""
