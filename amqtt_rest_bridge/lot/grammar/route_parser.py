# ruff: noqa
# mypy: ignore-errors
"""The parser of the route language, made by TatSu of `route.tatsu`: `python -m tests.lot.generated_parser`."""

from tatsu.infos import RuleInfo
from tatsu.parsing import Parser

WHITESPACE = '(?:[^\\S\\n]|\\n(?![^\\S\\n]*(?i:DEFINE)(?![\\w-])))+'
COMMENTS = '\\/\\*[\\s\\S]*?\\*\\/|(?:\\/\\/|--)[^\\n]*'
DIRECTIVES = {
    "whitespace": WHITESPACE,
    "ignorecase": True,
    "namechars": '!#$%&()*+,-.:;<=>?@[]^_`{|}~\\',
    "nameguard": True,
    "left_recursion": False,
    "parseinfo": True,
}


def rule(impl):
    info = RuleInfo(impl.__name__[1:-1], impl, False, True, False, (), {})
    return lambda self: self._call(info)


class RouteParser(Parser):
    @rule
    def _file_(self):
        self._outside_()
        self.name_last_node('outside')

        def block0():
            with self._choice():
                with self._option():
                    self._route_()
                with self._option():
                    self._headless_route_()
                with self._option():
                    self._other_()
                self._fail()
        self._closure(block0)
        self.name_last_node('definitions')
        self._check_eof()

    @rule
    def _route_(self):
        self._DEFINE_()
        self.name_last_node('define')
        self._token('ROUTE')
        self._route_name_()
        self.name_last_node('name')
        self._token('WITH')
        self._token('TYPE')
        self._rest_api_()

        def block0():
            with self._choice():
                with self._option():
                    self._setting_()
                with self._option():
                    self._block_()
                with self._option():
                    self._header_()
                with self._option():
                    self._fault_()
                self._fail()
        self._closure(block0)
        self.name_last_node('body')

    @rule
    def _other_(self):
        self._DEFINE_()
        self.name_last_node('define')
        with self._optional():
            self._kind_()
            self.name_last_node('kind')
        with self._optional():
            self._title_()
            self.name_last_node('name')
        with self._optional():
            self._type_()
            self.name_last_node('type')
        self._SKIPPED_()

    @rule
    def _outside_(self):
        self._SKIPPED_()
        self.name_last_node('text')

    @rule
    def _rest_api_(self):
        self._pattern('(?i:"REST_API"|\'REST_API\'|REST_API)(?=[\\s"\']|\\Z|\\/[\\/*]|--)')

    @rule
    def _route_name_(self):
        self._pattern('(?!(?i:WITH|ADD)(?![^\\s"\'\\/]))[A-Za-z0-9_.-]+(?=\\s|\\/[\\/*])')
        self.name_last_node('text')

    @rule
    def _type_(self):
        self._token('WITH')
        self._token('TYPE')
        self._title_()
        self.name_last_node('@')

    @rule
    def _setting_(self):
        self._token('WITH')
        self._name_()
        self.name_last_node('name')
        self._pieces_()
        self.name_last_node('pieces')

    @rule
    def _block_(self):
        self._token('ADD')
        self._block_name_()
        self.name_last_node('kind')
        self._pieces_()
        self.name_last_node('pieces')

    @rule
    def _block_name_(self):
        self._pattern('(?i:EVENT|REST_API_CONFIG|ROUTE_CONFIG|MQTT_CONFIG)(?![^\\s"\'\\/])')

    @rule
    def _header_(self):
        self._token('ADD')
        self._name_()
        self.name_last_node('name')
        self._pieces_()
        self.name_last_node('pieces')

    @rule
    def _name_(self):
        with self._choice():
            with self._option():
                self._word_()
            with self._option():
                self._string_()
            self._fail()

    @rule
    def _pieces_(self):
        with self._choice():
            with self._option():

                def sep0():
                    self._token('+')

                def block1():
                    self._part_()
                self._positive_gather(block1, sep0)
            with self._option():
                with self._ifnot():
                    self._part_()
                with self._ifnot():
                    self._token('+')
            self._fail()

    @rule
    def _part_(self):
        with self._choice():
            with self._option():
                self._string_()
            with self._option():
                self._get_()
            with self._option():
                self._span_()
            with self._option():
                self._word_()
            self._fail()

    @rule
    def _string_(self):
        with self._choice():
            with self._option():
                self._pattern('"(?:[^"\\\\\\n]|\\\\[^\\n])*+"|\'(?:[^\'\\\\\\n]|\\\\[^\\n])*+\'')
                self.name_last_node('text')
            with self._option():
                self._LONG_STRING_()
                self.name_last_node('text')
            with self._option():
                self._pattern('["\'][^\\n]*')
                self.name_last_node('open')
            self._fail()

    @rule
    def _word_(self):
        self._pattern('(?!\\+|(?i:WITH|ADD)(?![^\\s"\'\\/]))(?:(?!\\/\\/|\\/\\*|--)[^\\s"\'])+')
        self.name_last_node('text')

    @rule
    def _span_(self):
        self._pattern('[0-9]+\\s+(?i:SECOND|MINUTE|HOUR|DAY)(?i:S?)(?![^\\s"\'\\/])')
        self.name_last_node('text')

    @rule
    def _get_(self):
        self._token('GET')
        with self._group():
            with self._choice():
                with self._option():
                    self._token('ENV')
                with self._option():
                    self._token('SECRET')
                self._fail()
        self.name_last_node('source')
        with self._group():
            with self._choice():
                with self._option():
                    self._string_()
                with self._option():
                    self._bare_name_()
                self._fail()
        self.name_last_node('name')

    @rule
    def _condition_(self):
        self._either_()
        self.name_last_node('test')
        self._leftover_()
        self.name_last_node('leftover')
        self._check_eof()

    @rule
    def _either_(self):

        def sep0():
            with self._group():
                self._or_()

        def block1():
            self._both_()
        self._positive_gather(block1, sep0)

    @rule
    def _both_(self):

        def sep0():
            with self._group():
                self._and_()

        def block1():
            self._test_()
        self._positive_gather(block1, sep0)

    @rule
    def _test_(self):
        with self._choice():
            with self._option():
                self._negation_()
            with self._option():
                self._group_()
            with self._option():
                self._existence_()
            with self._option():
                self._comparison_()
            self._fail()

    @rule
    def _negation_(self):
        self._not_()
        self._test_()
        self.name_last_node('of')

    @rule
    def _group_(self):
        self._open_()
        self._either_()
        self.name_last_node('of')
        with self._optional():
            self._close_()
            self.name_last_node('end')

    @rule
    def _existence_(self):
        self._exists_()
        self._operand_()
        self.name_last_node('of')

    @rule
    def _comparison_(self):
        self._operand_()
        self.name_last_node('left')
        with self._group():
            with self._choice():
                with self._option():
                    self._operator_()
                    self.name_last_node('operator')
                    self._operand_()
                    self.name_last_node('right')
                with self._option():
                    with self._optional():
                        self._not_()
                        self.name_last_node('negated')
                    self._like_()
                    self._operand_()
                    self.name_last_node('pattern')
                with self._option():
                    with self._optional():
                        self._not_()
                        self.name_last_node('negated')
                    self._in_()
                    self._open_()

                    def sep0():
                        self._token(',')

                    def block1():
                        self._operand_()
                    self._positive_gather(block1, sep0)
                    self.name_last_node('items')
                    self._close_()
                with self._option():
                    self._void()
                self._fail()

    @rule
    def _operator_(self):
        self._pattern('<=|>=|!=|=|<|>')

    @rule
    def _operand_(self):
        with self._choice():
            with self._option():
                self._placeholder_()
            with self._option():
                self._number_()
            with self._option():
                self._quoted_()
            with self._option():
                self._constant_()
            with self._option():
                self._missing_()
            self._fail()

    @rule
    def _title_(self):
        with self._choice():
            with self._option():
                self._pattern('"[^"\\n]*"|\'[^\'\\n]*\'')
                self.name_last_node('text')
            with self._option():
                self._word_()
            self._fail()

    @rule
    def _kind_(self):
        self._pattern('(?!(?i:WITH|ADD)(?![^\\s"\'\\/]))[^\\s"\'\\/]+')

    @rule
    def _bare_name_(self):
        self._pattern('(?!(?i:WITH|ADD)(?![^\\s"\'\\/]))[A-Za-z0-9_.-]+')
        self.name_last_node('text')

    @rule
    def _LONG_STRING_(self):
        with self._group():
            with self._choice():
                with self._option():
                    self._DOUBLE_QUOTED_()
                with self._option():
                    self._SINGLE_QUOTED_()
                self._fail()
        self.name_last_node('@')
        self._BEHIND_STRING_()

    @rule
    def _DOUBLE_QUOTED_(self):
        self._pattern('"(?>(?:[^"\\\\\\n]+|\\\\[^\\n]|\\\\?\\n(?![^\\S\\n]*(?i:DEFINE(?![\\w-])|(?:WITH|ADD)\\s+[\\w-]+\\s*")))*)"')

    @rule
    def _SINGLE_QUOTED_(self):
        self._pattern("'(?>(?:[^'\\\\\\n]+|\\\\[^\\n]|\\\\?\\n(?![^\\S\\n]*(?i:DEFINE(?![\\w-])|(?:WITH|ADD)\\s+[\\w-]+\\s*')))*)'")

    @rule
    def _BEHIND_STRING_(self):
        self._pattern('(?=[\\s+]|\\Z|\\/[\\/*]|--)')

    @rule
    def _DEFINE_(self):
        self._pattern('\\n[^\\S\\n]*(?i:DEFINE)(?![\\w-])')

    @rule
    def _SKIPPED_(self):
        self._pattern('(?>(?:[^\\n"\'\\/]+|"[^"\\n]*"|\'[^\'\\n]*\'|(?<!\\S)\\/\\*[\\s\\S]*?\\*\\/|["\'\\/]|\\n(?![^\\S\\n]*(?i:DEFINE)(?![\\w-])))*)')

    @rule
    def _placeholder_(self):
        self._pattern('\\{[^{}"\\x00-\\x1f]{1,256}\\}')
        self.name_last_node('text')

    @rule
    def _number_(self):
        self._pattern('-?(?:0|[1-9][0-9]*)(?:\\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![\\w.])')
        self.name_last_node('text')

    @rule
    def _quoted_(self):
        self._pattern('"[^"]*"|\'[^\']*\'')
        self.name_last_node('text')

    @rule
    def _constant_(self):
        self._pattern('(?i:true|false|null)(?![\\w-])')
        self.name_last_node('text')

    @rule
    def _missing_(self):
        self._pattern('(?!(?i:AND|OR|NOT|IN|LIKE|EXISTS)(?![\\w-]))[^\\s(),=<>!]+|')
        self.name_last_node('text')

    @rule
    def _leftover_(self):
        self._pattern('[\\s\\S]*')
        self.name_last_node('text')

    @rule
    def _or_(self):
        self._pattern('(?i:OR)(?![\\w-])')

    @rule
    def _and_(self):
        self._pattern('(?i:AND)(?![\\w-])')

    @rule
    def _not_(self):
        self._pattern('(?i:NOT)(?![\\w-])')

    @rule
    def _in_(self):
        self._pattern('(?i:IN)(?![\\w-])')

    @rule
    def _like_(self):
        self._pattern('(?i:LIKE)(?![\\w-])')

    @rule
    def _exists_(self):
        self._pattern('(?i:EXISTS)(?![\\w-])')

    @rule
    def _open_(self):
        self._pattern('\\(')

    @rule
    def _close_(self):
        self._pattern('\\)')

    @rule
    def _headless_route_(self):
        self._DEFINE_()
        self.name_last_node('define')
        self._token('ROUTE')
        with self._optional():
            self._title_()
            self.name_last_node('name')
        with self._group():
            with self._choice():
                with self._option():
                    self._our_type_()
                    self.name_last_node('type')
                with self._option():
                    with self._ifnot():
                        self._type_()
                self._fail()

        def block0():
            self._unread_()
        self._closure(block0)
        self.name_last_node('unread')

        def block1():
            with self._choice():
                with self._option():
                    self._setting_()
                with self._option():
                    self._block_()
                with self._option():
                    self._header_()
                with self._option():
                    self._fault_()
                self._fail()
        self._closure(block1)
        self.name_last_node('body')

    @rule
    def _our_type_(self):
        self._token('WITH')
        self._token('TYPE')
        self._rest_api_()
        self.name_last_node('@')

    @rule
    def _unread_(self):
        with self._ifnot():
            self._token('ADD')
        with self._group():
            with self._choice():
                with self._option():
                    self._string_()
                with self._option():
                    self._junk_()
                with self._option():
                    self._token('WITH')
                self._fail()
        self.name_last_node('@')

    @rule
    def _fault_(self):
        with self._choice():
            with self._option():

                def block0():
                    self._junk_()
                self._positive_closure(block0)
                self.name_last_node('words')
            with self._option():
                with self._ifnot():
                    self._begun_()
                with self._group():
                    with self._choice():
                        with self._option():
                            self._token('WITH')
                        with self._option():
                            self._token('ADD')
                        self._fail()
                self.name_last_node('verb')

                def block1():
                    self._junk_()
                self._closure(block1)
                self.name_last_node('words')
            with self._option():
                self._open_comment_()
            self._fail()

    @rule
    def _begun_(self):
        with self._group():
            with self._choice():
                with self._option():
                    self._token('WITH')
                with self._option():
                    self._token('ADD')
                self._fail()
        self._name_()
        self._pieces_()

    @rule
    def _junk_(self):
        with self._choice():
            with self._option():
                self._string_()
            with self._option():
                self._UNREAD_()
                self.name_last_node('text')
            self._fail()

    @rule
    def _open_comment_(self):
        self._pattern('\\/\\*[^\\n]*')
        self.name_last_node('comment')

    @rule
    def _UNREAD_(self):
        self._pattern('(?:(?!(?i:WITH|ADD)(?![^\\s"\'\\/]))(?:(?!\\/\\/|\\/\\*|--)[^\\s"\'])+(?:(?!\\n[^\\S\\n]*(?i:DEFINE)(?![\\w-]))\\s)*)+')
