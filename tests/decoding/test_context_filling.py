from macaron_tf.decoding.text_generator import fill_context

EXAMPLES = [[1, 1, 1], [2, 2, 2, 2, 2], [3], [4, 4]]


def test_all_go_in_in_order_where_there_is_room():
    found = fill_context(EXAMPLES, [9, 8], 13)
    assert found.ids == [1, 1, 1, 2, 2, 2, 2, 2, 3, 4, 4, 9, 8]
    assert found.shown == 4 and not found.cut


def test_what_does_not_fit_is_left_out():
    assert fill_context(EXAMPLES, [9, 8], 7).ids == [1, 1, 1, 3, 9, 8]
    assert fill_context(EXAMPLES, [9, 8], 2) == ([9, 8], 0, False)


def test_of_a_query_that_is_too_long_the_end_is_kept():
    assert fill_context(EXAMPLES, [9, 8, 7], 2) == ([8, 7], 0, True)
